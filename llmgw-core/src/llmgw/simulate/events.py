"""A clock that jumps from event to event."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class VirtualTime:
    """The `Clock` of a simulation. Its wall clock may be moved; durations never are."""

    def __init__(self, start: float = 1_000.0, wall: float = 1_800_000_000.0) -> None:
        self.now = start
        self._wall_offset = wall - start

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self._wall_offset

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self._wall_offset += seconds

    async def sleep(self, delay_s: float) -> None:
        """Never wait: in a simulation things are scheduled."""
        raise NotImplementedError(f"slept for {delay_s} s instead of being scheduled")


class Events:
    """What happens when. Events of one moment happen in the order in which they were added."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.happened = 0

    def after(self, delay_s: float, happen: Callable[[], None]) -> None:
        """Let something happen `delay_s` from now."""
        heapq.heappush(self._queue, (self._time.now + delay_s, next(self._order), happen))

    def run_until(self, end: float, *, each: Callable[[], None]) -> None:
        """Let everything happen that is due before `end`, calling `each` after every event."""
        while self._queue and self._queue[0][0] <= end:
            self._time.now, _, happen = heapq.heappop(self._queue)
            self.happened += 1
            happen()
            each()
        self._time.now = end
