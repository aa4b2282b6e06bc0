"""How often an address has shown a wrong key lately."""

from __future__ import annotations

_WINDOW_S = 60.0
_ADDRESSES = 8192


class Attempts:
    """Failures per address in a minute. Bounded: the oldest address is forgotten for a new one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._failures: dict[str, tuple[int, float]] = {}

    def failed(self, address: str, now: float) -> None:
        count, until = self._failures.pop(address, (0, 0.0))
        if now >= until:
            count, until = 0, now + _WINDOW_S
        self._failures[address] = (count + 1, until)
        if len(self._failures) > _ADDRESSES:
            del self._failures[next(iter(self._failures))]

    def locked_s(self, address: str, now: float) -> float:
        """Return for how long this address is not listened to; 0.0 if it is."""
        if not self._failures:
            return 0.0
        count, until = self._failures.get(address, (0, 0.0))
        return max(0.0, until - now) if count >= self._limit else 0.0
