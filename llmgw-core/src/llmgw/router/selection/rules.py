"""When an endpoint is left out, for how long, and how it comes back. Pure."""

from __future__ import annotations

_SLOW_START_FROM = 0.1
"""Share of its weight that an endpoint begins with: enough to compile and to fill caches."""


def ejection_s(count: int, *, base_s: float, cap_s: float) -> float:
    """Return how long the `count`-th ejection in a row lasts; count is at least 1."""
    return min(cap_s, base_s * count)


def may_eject(*, ready: int, ejected: int, max_share: float) -> bool:
    """Say whether one more of `ready` endpoints may be left out. Never the last one."""
    return ready - ejected > 1 and ejected + 1 <= max_share * ready


def is_panic(*, ready: int, healthy: int, panic_below: float) -> bool:
    """Say whether so few are healthy that our view is to be doubted, not the engines.

    Then every ready one is used: all traffic on the few that are left would kill those too.
    """
    return ready > 0 and (healthy == 0 or healthy < panic_below * ready)


def ramped(weight: float, *, since_s: float, slow_start_s: float) -> float:
    """Return the share of an endpoint that came into use `since_s` ago."""
    if since_s >= slow_start_s:
        return weight
    return weight * (_SLOW_START_FROM + (1 - _SLOW_START_FROM) * since_s / slow_start_s)
