"""Clocks for tests: one that moves only when told to, and one that runs fast."""

from __future__ import annotations

import heapq
import itertools

import anyio
import anyio.lowlevel

from llmgw.clock import SystemClock


class FakeClock:
    """Stands still until `advance`; sleepers wake in the order of their times."""

    def __init__(self, start: float = 1000.0, *, wall: float = 1_800_000_000.0) -> None:
        self._now = start
        self._wall_offset = wall - start
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, anyio.Event]] = []

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._wall_offset

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a time server would; durations are not touched."""
        self._wall_offset += seconds

    async def sleep(self, delay_s: float) -> None:
        if delay_s <= 0:
            await anyio.lowlevel.checkpoint()
            return
        woken = anyio.Event()
        heapq.heappush(self._sleepers, (self._now + delay_s, next(self._order), woken))
        await woken.wait()

    async def advance(self, seconds: float) -> None:
        """Move time on, waking sleepers one by one and letting each run before the next."""
        end = self._now + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, woken = heapq.heappop(self._sleepers)
            woken.set()
            await self._settle()
        self._now = end
        await self._settle()

    async def _settle(self) -> None:
        # Long enough for a chain of tasks that wake each other; more costs only test time.
        for _ in range(20):
            await anyio.lowlevel.checkpoint()


class FastClock:
    """The machine's time, run faster: for a whole server, whose sockets need the real thing."""

    def __init__(self, times: float = 4.0) -> None:
        self._times = times
        self._real = SystemClock()

    def monotonic(self) -> float:
        return self._real.monotonic() * self._times

    def wall(self) -> float:
        return self._real.wall()

    async def sleep(self, delay_s: float) -> None:
        await self._real.sleep(delay_s / self._times)
