"""Time as an argument.

Shells take a `Clock`; decisions take `now: float`, seconds of `Clock.monotonic`. Nothing
else in llmgw reads the time, so that a whole fleet runs on a virtual clock in tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import anyio


class Clock(Protocol):
    """Where shells read the time and wait."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back, suspended time included."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 in UTC, for people and for the store. Never for durations."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s`; at once if it is not positive."""
        ...


class SystemClock:
    """The machine's own time."""

    # A lease must run out while the machine is suspended, which CLOCK_MONOTONIC does not
    # show. macOS (ctl and router only) has no CLOCK_BOOTTIME; there its monotonic clock
    # counts suspended time by itself.
    _source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def __init__(self) -> None:
        # Read often in a request of the router: without a Python frame it costs a third.
        self.monotonic: Callable[[], float] = partial(time.clock_gettime, self._source)
        self.wall: Callable[[], float] = time.time

    async def sleep(self, delay_s: float) -> None:
        await anyio.sleep(max(0.0, delay_s))
