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
    return draw * min(CAP_S, _doubled(attempt))


def attempts_after(attempt: int, up_s: float) -> int:
    """Return how many failures in a row still count after a session that was up so long.

    A session that outlasted the longest wait it would cost clears the count, although it was no
    steady one: an agent that dialled for a while before its server was there must not pay for
    that at the server's first restart. A server that ends each session at once is still left
    alone for longer each time.
    """
    return 0 if up_s >= min(STEADY_S, _doubled(attempt)) else attempt


def _doubled(attempt: int) -> float:
    return 2.0 ** min(attempt, 10)
