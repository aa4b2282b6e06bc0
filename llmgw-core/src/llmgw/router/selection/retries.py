"""How many second tries a model may have. Without a budget, retries double an overload."""

from __future__ import annotations

_WINDOW_S = 10


class RetryBudget:
    """Requests and retries of one model in the last ten seconds, in whole seconds."""

    __slots__ = ("_floor", "_requests", "_retries", "_second", "_share")

    def __init__(self, *, share: float, floor: int) -> None:
        self._share = share
        self._floor = floor
        self._second = 0
        self._requests = [0] * _WINDOW_S
        self._retries = [0] * _WINDOW_S

    def count_request(self, now: float) -> None:
        """One request has begun."""
        second = int(now)
        if second != self._second:
            self._move_to(second)
        self._requests[second % _WINDOW_S] += 1

    def take(self, now: float) -> bool:
        """Say whether one more retry is allowed, and count it if so."""
        self._move_to(int(now))
        allowed = max(self._floor, self._share * sum(self._requests))
        if sum(self._retries) >= allowed:
            return False
        self._retries[self._second % _WINDOW_S] += 1
        return True

    def _move_to(self, second: int) -> None:
        for passed in range(self._second + 1, min(second, self._second + _WINDOW_S) + 1):
            self._requests[passed % _WINDOW_S] = 0
            self._retries[passed % _WINDOW_S] = 0
        self._second = max(self._second, second)
