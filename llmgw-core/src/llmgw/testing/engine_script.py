"""A stand-in engine on a real socket that plays an answer byte for byte.

    async with ScriptedEngine(Script.events('{"choices": []}')) as engine:
        ...  # send requests to engine.url
        assert engine.requests[0].json()["model"] == "demo"

For tests of what stands between client and engine: what the engine received, in which
order it may write, and when it saw its peer leave.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes as they are."""

    data: bytes
    times: int = 1


@dataclass(frozen=True, slots=True)
class Wait:
    """Let this much time pass, or stop early because the peer left."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Until:
    """Say nothing until this holds; hang up if it does not in time."""

    condition: Callable[[], bool]
    limit_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Hang:
    """Say nothing more until the peer leaves."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection. reset: without the good manners of TCP."""

    reset: bool = False


@dataclass(frozen=True, slots=True)
class Die:
    """End as a process does: nobody listens any more, and every connection is reset."""


Step = Send | Wait | Until | Hang | Close | Die


def chunk(data: bytes) -> bytes:
    """Return data as one piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(data: str) -> bytes:
    """Return one server-sent event."""
    return f"data: {data}\n\n".encode()


@dataclass(frozen=True, slots=True)
class Script:
    """What the engine does after it has read one request."""

    steps: tuple[Step, ...]

    @staticmethod
    def plain(
        body: object, *, status: int = 200, headers: Sequence[tuple[str, str]] = ()
    ) -> Script:
        """Answer whole. body: bytes as they are, else as JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"content-type": "application/json", **dict(headers)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        head = f"HTTP/1.1 {status} X\r\n{lines}content-length: {len(raw)}\r\n\r\n".encode()
        return Script((Send(head + raw),))

    @staticmethod
    def events(*data: str, done: bool = True, end: Sequence[Step] | None = None) -> Script:
        """Stream these events, one write each. end: instead of a regular end."""
        steps: list[Step] = [Send(SSE_HEAD), *(Send(chunk(event(item))) for item in data)]
        if end is not None:
            return Script((*steps, *end))
        if done:
            steps.append(Send(chunk(event("[DONE]"))))
        return Script((*steps, Send(b"0\r\n\r\n")))

    @staticmethod
    def raw(*pieces: bytes | Step) -> Script:
        """Write these pieces; bytes are written as they are."""
        return Script(tuple(Send(piece) if isinstance(piece, bytes) else piece for piece in pieces))


@dataclass(slots=True)
class Received:
    """One request as the engine got it."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    number_on_connection: int
    peer_left: bool = False  #: before the script was through

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class ScriptedEngine:
    """Plays `script` for each request, or what `choose` returns for it."""

    script: Script = field(default_factory=lambda: Script.plain({"ok": True}))
    choose: Callable[[Received], Script] | None = None
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    open_connections: int = 0
    bytes_written: int = 0
    port: int = 0
    tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Refuse connections from now on and cut those that are open."""
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    async def wait_until(self, condition: Callable[[ScriptedEngine], bool]) -> None:
        """Return once the condition holds; it is asked after each request and each end."""
        async with self._changed:
            await self._changed.wait_for(lambda: condition(self))

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        self.open_connections += 1
        try:
            number = 0
            while (request := await _read_request(reader)) is not None:
                number += 1
                request.number_on_connection = number
                self.requests.append(request)
                await self._tell()
                script = self.choose(request) if self.choose else self.script
                if not await self._play(script, request, reader, writer):
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._writers.discard(writer)
            self.open_connections -= 1
            if task is not None:
                self._tasks.discard(task)
            await self._tell()

    async def _play(
        self,
        script: Script,
        request: Received,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Return whether the connection may carry another request."""
        gone = asyncio.ensure_future(_peer_leaves(reader))
        try:
            for step in script.steps:
                if gone.done():
                    break
                if isinstance(step, Send):
                    await self._send(step, writer, gone)
                elif isinstance(step, Wait):
                    await asyncio.wait([gone], timeout=step.seconds)
                elif isinstance(step, Until):
                    if not await _holds(step, gone):
                        _end(writer, reset=False)
                        return False
                elif isinstance(step, Hang):
                    await gone
                elif isinstance(step, Die):
                    self._die()
                    return False
                else:
                    _end(writer, reset=step.reset)
                    return False
            # The next request on this connection must not be eaten by the watch.
            return not gone.done()
        except ConnectionError:
            request.peer_left = True
            return False
        finally:
            if gone.done():
                request.peer_left = True
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            await self._tell()

    def _die(self) -> None:
        self._server.close()
        for writer in self._writers:
            _end(writer, reset=True)

    async def _send(
        self, step: Send, writer: asyncio.StreamWriter, gone: asyncio.Future[None]
    ) -> None:
        for _ in range(step.times):
            writer.write(step.data)
            drained = asyncio.ensure_future(writer.drain())
            await asyncio.wait([drained, gone], return_when=asyncio.FIRST_COMPLETED)
            if not drained.done():
                drained.cancel()
                raise ConnectionResetError
            await drained
            self.bytes_written += len(step.data)
        await asyncio.sleep(0)


async def _holds(step: Until, gone: asyncio.Future[None]) -> bool:
    """Return whether the condition came true in time, or the peer left."""
    ends = asyncio.get_running_loop().time() + step.limit_s
    while not (step.condition() or gone.done()):
        if asyncio.get_running_loop().time() > ends:
            return False
        await asyncio.sleep(0.002)
    return True


async def _peer_leaves(reader: asyncio.StreamReader) -> None:
    # `read` would take the first byte of a following request; only the end is of interest.
    while not reader.at_eof():
        if reader.exception() is not None:
            return
        await asyncio.sleep(0.002)


def _end(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        raw = writer.get_extra_info("socket")
        if raw.fileno() < 0:
            return  # two requests of an engine may end it in the same turn
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.decode("latin-1").split("\r\n")
    headers = [
        (name.lower(), value.strip())
        for name, _, value in (item.partition(":") for item in rest if item)
    ]
    request = Received(line=line, headers=headers, body=b"", number_on_connection=0)
    length = request.header("content-length")
    if length is not None:
        request.body = await reader.readexactly(int(length))
    return request
