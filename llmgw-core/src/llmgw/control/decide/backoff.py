"""How long to leave something alone after it failed."""

from __future__ import annotations


def backoff_s(failures: int, *, base_s: float, cap_s: float) -> float:
    """Return the pause after this many failures in a row: base, doubled each time, at most cap.

    0 failures need no pause. There is no jitter: one leader paces all, and a decision must
    give the same answer for the same snapshot.
    """
    if failures <= 0:
        return 0.0
    # 2**30 base pauses exceed any cap; beyond it only the float would overflow.
    return min(cap_s, base_s * 2.0 ** min(failures - 1, 30))
