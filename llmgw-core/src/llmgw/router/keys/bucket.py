"""A rate as a bucket that fills evenly. A store of three numbers; `now` is monotonic."""

from __future__ import annotations


class Bucket:
    """Holds up to a minute's allowance. May go below zero: what was used is used."""

    __slots__ = ("_at", "_level", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """Return what is left."""
        if now > self._at:
            gained = (now - self._at) * self.per_minute / 60
            self._level = min(float(self.per_minute), self._level + gained)
            self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Use some, or give some back if negative."""
        self._level = min(float(self.per_minute), self.level(now) - amount)

    def wait_s(self, amount: float, now: float) -> float:
        """Return after how long `amount` is there; never if it is more than a full bucket holds.

        A request larger than the bucket is let in when the bucket is full, so the wait is for that.
        """
        missing = min(amount, float(self.per_minute)) - self.level(now)
        return max(0.0, missing * 60 / self.per_minute)

    def resize(self, per_minute: int, now: float) -> None:
        """Change the rate; what has been used stays used."""
        used = self.per_minute - self.level(now)
        self.per_minute = per_minute
        self._level = per_minute - used

    def share(self, per_minute: int, now: float) -> None:
        """Take another share of the same limit. What has been saved up is not made more by
        that, or a share that wanders between routers would let each of them burst."""
        level = self.level(now)
        self.per_minute = per_minute
        self._level = min(float(per_minute), level)


def resized(bucket: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    """Return the bucket for a limit that may have come, changed or gone."""
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(per_minute, now)
    if bucket.per_minute != per_minute:
        bucket.resize(per_minute, now)
    return bucket
