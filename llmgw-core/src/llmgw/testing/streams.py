"""Streams that never let up, from a thread of their own: load for tests of faults.

with StreamLoad(targets, model="m", count=100) as load:
    ...
assert load.broken == ()
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_SILENCE_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One request from its first byte out to its last byte in. Times are monotonic seconds."""

    target: tuple[str, int]
    began: float
    first_byte: float | None
    ended: float
    chunks: int
    problem: str  #: "": answered whole, with its `[DONE]`

    @property
    def reached_client(self) -> bool:
        """Whether the client had got something, so that nothing could be tried again for it."""
        return self.chunks > 0


class StreamLoad:
    """Keeps `count` streams open, spread over the targets; one that ends is followed by another."""

    def __init__(
        self,
        targets: Sequence[tuple[str, int]],
        *,
        model: str,
        count: int,
        tokens: int = 20,
        stream: bool = True,
        begin_over_s: float = 1.0,
    ) -> None:
        """targets: host and port of each router. begin_over_s: the first ones begin within so
        long; as long as one stream takes, or they go on beginning and ending together.
        """
        self._pause_s = begin_over_s / count
        self.ended: list[Stream] = []
        self._targets = tuple(targets)
        self._count = count
        self._fields = {"model": model, "stream": stream, "max_tokens": tokens}
        self._numbers = itertools.count()
        self._is_stream = stream
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    @property
    def broken(self) -> tuple[Stream, ...]:
        """Streams that did not end well, in the order of their ends."""
        return tuple(item for item in tuple(self.ended) if item.problem)

    @property
    def whole(self) -> int:
        return sum(not item.problem for item in tuple(self.ended))

    def retarget(self, targets: Sequence[tuple[str, int]]) -> None:
        """Send new streams there from now on."""
        self._targets = tuple(targets)

    def stop(self, limit_s: float = 60.0) -> None:
        """Begin no stream any more and wait for the open ones."""
        self._stop.set()
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), "streams are still open"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._count):
                tasks.create_task(self._keep(number))

    async def _keep(self, number: int) -> None:
        await asyncio.sleep(number * self._pause_s)
        while not self._stop.is_set():
            target = self._targets[number % len(self._targets)]
            done = await self._one(target)
            self.ended.append(done)
            if done.problem:
                await asyncio.sleep(0.2)  # as a client's own retry would

    async def _one(self, target: tuple[str, int]) -> Stream:
        began = time.monotonic()
        answer = bytearray()
        first: float | None = None
        problem = ""
        try:
            reader, writer = await asyncio.open_connection(*target)
            try:
                writer.write(self._request(target))
                while data := await asyncio.wait_for(reader.read(65536), _SILENCE_S):
                    first = first or time.monotonic()
                    answer += data
            finally:
                writer.close()
        except (OSError, TimeoutError) as error:
            problem = f"{type(error).__name__}: {error}"
        return Stream(
            target=target,
            began=began,
            first_byte=first,
            ended=time.monotonic(),
            chunks=answer.count(b'"delta"'),
            problem=problem or self._problem_of(bytes(answer)),
        )

    def _request(self, target: tuple[str, int]) -> bytes:
        # No two alike: what was in flight on two engines that died is refused by its content.
        content = f"hello {next(self._numbers)}"
        body = json.dumps(
            {**self._fields, "messages": [{"role": "user", "content": content}]}
        ).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {target[0]}:{target[1]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + body

    def _problem_of(self, answer: bytes) -> str:
        if not answer:
            return "closed without an answer"
        if not answer.startswith(b"HTTP/1.1 200"):
            return answer[:400].decode(errors="replace")
        if self._is_stream and b"data: [DONE]" not in answer:
            return f"no end: {answer[-300:].decode(errors='replace')}"
        return ""
