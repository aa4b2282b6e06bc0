"""Thousands of streams while their engines come and go: whose is each byte, and how does each end?

nox -s churn -- --minutes 2 --streams 500          a shorter one
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
from collections import Counter
from enum import StrEnum
from typing import Any

import pytest

from llmgw.testing.eventually import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WARM_UP_S = 120.0
SAMPLE_EVERY_S = 5.0
MEMORY_SLOPE_MIB = 0.2
"""Per minute, after the warm-up."""


class End(StrEnum):
    """How a stream may end. Each ends in one of these ways, and once."""

    DONE = "done"  #: all tokens, then `[DONE]`, then the last chunk
    ERROR_EVENT = "error event"  #: some tokens, then one error event, then nothing
    REFUSED = "refused"  #: a status with a code
    LEFT = "left"  #: by us


class Fault(AssertionError):
    """A stream that is not as it should be."""


class Streams:
    """Keeps a number of streams running and looks at each of their bytes."""

    def __init__(self, port: int, key: str, seed: int) -> None:
        self._port = port
        self._key = key
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self.ends: Counter[End] = Counter()
        self.tokens = 0
        self.faults: list[str] = []
        self.codes: Counter[str] = Counter()
        self.running = 0

    async def keep_one(self, until: float) -> None:
        """Run one stream after the other, on one connection as long as that lives."""
        loop = asyncio.get_running_loop()
        # Not all in the same instant: the accept queue is not what is tried here.
        await asyncio.sleep(self._random.random() * 5)
        while loop.time() < until:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                while loop.time() < until and await self._one(reader, writer):
                    pass
            except Fault as fault:
                self.faults.append(str(fault))
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                self.faults.append(f"cut without a word: {error!r}")
            finally:
                writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Run one stream; return whether the connection may carry another."""
        user = f"s{next(self._numbers)}"
        count = self._random.randint(4, 60)
        leaves_at = self._random.randrange(count) if self._random.random() < 0.1 else None
        asked = {"model": "demo", "stream": True, "user": user, "max_tokens": count, "messages": []}
        body = json.dumps(asked).encode()
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {self._key}\r\n"
            f"X-Request-Id: {user}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self.running += 1
        try:
            status, headers = await _head(reader)
            if headers.get("x-request-id") != user:
                raise Fault(f"{user}: the answer of {headers.get('x-request-id')}")
            if status != 200:
                await self._refused(reader, user, status, headers)
            else:
                await self._follow(reader, user, count, leaves_at)
        except _Left:
            self.ends[End.LEFT] += 1
            return False
        finally:
            self.running -= 1
        return headers.get("connection") != "close" and not reader.at_eof()

    async def _refused(
        self, reader: asyncio.StreamReader, user: str, status: int, headers: dict[str, str]
    ) -> None:
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        code = body["error"]["code"]
        if not code:
            raise Fault(f"{user}: {status} without a code")
        self.ends[End.REFUSED] += 1
        self.codes[f"{status} {code}"] += 1

    async def _follow(
        self, reader: asyncio.StreamReader, user: str, count: int, leaves_at: int | None
    ) -> None:
        seen = 0
        ended: End | None = None
        async for data in _events(reader):
            if ended is not None:
                raise Fault(f"{user}: {data!r} behind its end ({ended})")
            if data == "[DONE]":
                if seen != count:
                    raise Fault(f"{user}: done after {seen} of {count} tokens")
                ended = End.DONE
                continue
            token = json.loads(data)
            if "error" in token:
                ended = End.ERROR_EVENT
                self.codes[f"event {token['error']['code']}"] += 1
                continue
            if token["id"] != user or token["n"] != seen:
                raise Fault(f"{user}: token {token['n']} of {token['id']}, expected {seen}")
            seen += 1
            self.tokens += 1
            if leaves_at is not None and seen > leaves_at:
                raise _Left
        if ended is None:
            raise Fault(f"{user}: ended without an end after {seen} of {count} tokens")
        self.ends[ended] += 1


class _Left(Exception):
    """We go in mid-stream."""


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if line)
    return int(first.split(" ")[1]), {name.lower(): value for name, value in headers.items()}


async def _events(reader: asyncio.StreamReader) -> Any:
    """Yield the data of each event; a body that is cut off ends like a whole one."""
    buffered = b""
    while True:
        try:
            size = int(await reader.readuntil(b"\r\n"), 16)
            piece = (await reader.readexactly(size + 2))[:-2]
        except (asyncio.IncompleteReadError, ConnectionError):
            if buffered:
                raise
            return
        if not size:
            return
        buffered += piece
        *whole, buffered = buffered.split(b"\n\n")
        for event in whole:
            if event.startswith(b"data: "):
                yield event.removeprefix(b"data: ").decode()


async def churn(fleet: Any, until: float, seed: int) -> Counter[str]:
    """Make engines come and go until then, at most half of them away at a time; bring all back."""
    drawn = random.Random(seed)
    loop = asyncio.get_running_loop()
    done: Counter[str] = Counter()
    away: set[str] = set()
    published = {engine.id for engine in fleet.engines}

    async def trouble(engine: Any) -> None:
        kind = drawn.choice(("withdraw", "kill", "end", "freeze"))
        pause_s = drawn.uniform(0.5, 6.0)
        done[kind] += 1
        if kind == "withdraw":
            published.discard(engine.id)
            fleet.publish(published)
            await asyncio.sleep(pause_s)
            published.add(engine.id)
            fleet.publish(published)
        elif kind == "freeze":
            engine.signal(signal.SIGSTOP)
            await asyncio.sleep(pause_s)
            engine.signal(signal.SIGCONT)
        else:
            engine.signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            await asyncio.sleep(pause_s)
            engine.start()
        away.discard(engine.id)

    async with asyncio.TaskGroup() as tasks:
        while loop.time() < until:
            await asyncio.sleep(drawn.uniform(2.0, 10.0))
            standing = [engine for engine in fleet.engines if engine.id not in away]
            if len(standing) > len(fleet.engines) // 2:
                chosen = drawn.choice(standing)
                away.add(chosen.id)
                tasks.create_task(trouble(chosen))
    return done


async def sample(fleet: Any, began: float, samples: list[tuple[float, int, int]]) -> None:
    """Note (minutes, memory, open files) until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SAMPLE_EVERY_S)
        minutes = (loop.time() - began) / 60
        samples.append((minutes, fleet.memory_kib, fleet.open_files))


def slope(points: list[tuple[float, float]]) -> float:
    """Return the least-squares slope."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


@pytest.mark.timeout(3600)
async def test_streams_keep_apart_while_engines_come_and_go(
    fleet: Any, request: pytest.FixtureRequest, figures: Any
) -> None:
    minutes, count = (request.config.getoption(name) for name in ("--minutes", "--streams"))
    loop = asyncio.get_running_loop()
    files_before = fleet.open_files
    streams = Streams(fleet.site.api_port, fleet.key, seed=1)
    began = loop.time()
    until = began + minutes * 60
    samples: list[tuple[float, int, int]] = []
    async with asyncio.TaskGroup() as tasks:
        sampling = tasks.create_task(sample(fleet, began, samples))
        async with asyncio.TaskGroup() as load:
            for _ in range(count):
                load.create_task(streams.keep_one(until))
            troubles = await churn(fleet, until, seed=2)
        sampling.cancel()

    def all_gone() -> bool:
        return bool(fleet.open_files <= files_before + 2 * len(fleet.engines))

    gauges: dict[str, float] = {}

    def all_zero() -> bool:
        gauges.update(fleet.gauges())
        # The scrape itself comes on the admin listener, over a connection that counts.
        return all(value <= (name == "llmgw_connections") for name, value in gauges.items())

    warm = [(at, kib / 1024) for at, kib, _ in samples if at * 60 >= min(WARM_UP_S, minutes * 20)]
    growth = slope(warm)
    try:
        await eventually(all_zero, within_s=30)
        await eventually(all_gone, within_s=90)
    finally:
        figures(
            streams=sum(streams.ends.values()),
            ends=dict(streams.ends),
            tokens=streams.tokens,
            codes=dict(streams.codes),
            troubles=dict(troubles),
            memory_mib_each_half_minute=[round(kib / 1024, 1) for _, kib, _ in samples[5::6]],
            memory_growth_mib_a_minute=round(growth, 3),
            most_files=max(files for _, _, files in samples),
            files_at_the_end=(files_before, fleet.open_files),
            not_zero={name: value for name, value in gauges.items() if value},
            faults=len(streams.faults),
        )
    assert not streams.faults, "\n".join(streams.faults[:20])
    assert streams.ends[End.DONE] > streams.ends.total() / 2
    assert fleet.server.process.poll() is None
    assert "Traceback" not in fleet.server.text, fleet.server.text[-3000:]
    if minutes >= 5:
        assert growth <= MEMORY_SLOPE_MIB
