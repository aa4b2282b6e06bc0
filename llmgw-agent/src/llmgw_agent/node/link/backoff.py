"""How long to wait before dialling again."""

from __future__ import annotations

CAP_S = 30.0
STEADY_S = 60.0
"""A session that lasted this long was a good one: the next wait is short again."""


def redial_delay_s(attempt: int, draw: float) -> float:
    """Return full jitter: anything between now and a limit that doubles up to the cap.

    attempt: failures in a row before this one, 0 for the first. draw: 0.0 to 1.0, random. A
    fleet whose server restarts must not come back in lockstep.
    """
    return draw * min(CAP_S, 2.0 ** min(attempt, 10))
