"""How far apart looks at engines begin. A decision over one number; `now` is an argument."""

from __future__ import annotations

_APART_S = 0.004
"""A look costs a third of a millisecond. So all of them together take less than a tenth of a core
and never hold the loop, however many endpoints there are and however they came into step."""


class Pace:
    """Hands out turns. With more endpoints than turns each is looked at less often; requests that
    fail have an endpoint looked at anyway."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0.0

    def delay_s(self, now: float) -> float:
        """Take the next free turn; return how far off it is."""
        turn = max(now, self._next)
        self._next = turn + _APART_S
        return turn - now
