"""How fast a model's line moves and how long it takes to wake, as measured."""

from __future__ import annotations

_NEWEST = 0.2
"""Weight of the newest figure in the moving means."""
_UNKNOWN_WAKE_S = 30.0
"""Until the first wake has been measured: a small model from a warm disk."""
_LONGEST_RETRY_S = 300.0


class Pace:
    """Moving means of one model."""

    __slots__ = ("_interval_s", "_last_served", "_wake_s")

    def __init__(self) -> None:
        self._interval_s: float | None = None
        self._last_served: float | None = None
        self._wake_s: float | None = None

    def served(self, now: float, *, still_waiting: bool) -> None:
        """Somebody got a slot. still_waiting: others do not have one, so this is the full pace."""
        if self._last_served is not None:
            self._interval_s = _mean(self._interval_s, now - self._last_served)
        # The time until an empty line is joined again says nothing about the engines.
        self._last_served = now if still_waiting else None

    def woke(self, after_s: float) -> None:
        """The model came up this long after the first request that waited for it."""
        self._wake_s = _mean(self._wake_s, after_s)

    def drain_s(self, waiting: int) -> float:
        """Return how long until `waiting` more have been served; 1 s each ten while unmeasured."""
        interval_s = 0.1 if self._interval_s is None else self._interval_s
        return min(_LONGEST_RETRY_S, interval_s * (waiting + 1))

    def wake_s(self, expected_s: float | None) -> float:
        """Return how long a wake takes; the control plane's figure goes before our own."""
        return min(_LONGEST_RETRY_S, expected_s or self._wake_s or _UNKNOWN_WAKE_S)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _NEWEST * (new - old)
