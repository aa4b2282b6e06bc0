"""How fast something is asked for, smoothed. A store of two numbers."""

from __future__ import annotations

_NEWEST = 0.4
"""Weight of the newest interval. At a look each second a burst is forgotten in ten."""
_NOTHING = 0.5


class Meter:
    """Counts what was asked for, refused or not: a share is wanted for both."""

    __slots__ = ("_per_minute", "count")

    def __init__(self) -> None:
        self.count = 0  #: since the last call of `per_minute`; added to directly
        self._per_minute = 0.0

    def per_minute(self, interval_s: float) -> int:
        """Return the rate, given how long it has been since the last call; 0 when all is quiet."""
        newest = self.count * 60 / interval_s
        self.count = 0
        # Up at once, down slowly: a share that comes late is a refused request.
        rate = max(newest, self._per_minute + _NEWEST * (newest - self._per_minute))
        self._per_minute = rate if rate >= _NOTHING else 0.0
        return int(-(-self._per_minute // 1))
