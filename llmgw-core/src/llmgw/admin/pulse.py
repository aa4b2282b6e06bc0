"""The last minutes of the data plane, for the overview: readings, and what follows from two."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmgw.router.metrics import FIRST_TOKEN_BOUNDS, Totals

# Longer than the gaps between streams on a quiet cluster, short enough to show a change.
_QUANTILE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is so at one time, and what has been counted by then."""

    at: float  #: monotonic
    totals: Totals = field(default_factory=Totals)
    in_flight: int = 0
    queued: int = 0
    devices_used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One point of each plot. None: no stream has begun in the minute before."""

    at: float
    requests_per_s: float
    failed_per_s: float
    tokens_per_s: float
    first_token_p50_s: float | None
    first_token_p99_s: float | None
    in_flight: int
    queued: int
    devices_used: int


class Pulse:
    """The newest readings, oldest first; older ones are forgotten."""

    def __init__(self, *, keep: int = 150) -> None:
        """keep: how many; at one each two seconds, 150 are the last five minutes."""
        self._readings: deque[Reading] = deque(maxlen=keep)

    def add(self, reading: Reading) -> None:
        self._readings.append(reading)

    def newest(self) -> Beat | None:
        """Return the last point; None before the second reading."""
        if len(self._readings) < 2:
            return None
        after = self._readings[-1]
        minute_ago = next(item for item in self._readings if after.at - item.at <= _QUANTILE_S)
        before = self._readings[-2]
        return _beat(before, after, before if minute_ago is after else minute_ago)

    def beats(self) -> tuple[Beat, ...]:
        """Return one point for each reading but the first."""
        readings = tuple(self._readings)
        beats: list[Beat] = []
        start = 0
        for index in range(1, len(readings)):
            while readings[index].at - readings[start].at > _QUANTILE_S and start < index - 1:
                start += 1
            beats.append(_beat(readings[index - 1], readings[index], readings[start]))
        return tuple(beats)


def _beat(before: Reading, after: Reading, minute_ago: Reading) -> Beat:
    seconds = max(0.001, after.at - before.at)
    streams = _grown(minute_ago.totals.first_token, after.totals.first_token)
    old, new = before.totals, after.totals
    return Beat(
        at=after.at,
        requests_per_s=max(0, new.requests - old.requests) / seconds,
        failed_per_s=max(0, new.failed - old.failed) / seconds,
        tokens_per_s=max(0, new.output_tokens - old.output_tokens) / seconds,
        first_token_p50_s=quantile(streams, 0.5),
        first_token_p99_s=quantile(streams, 0.99),
        in_flight=after.in_flight,
        queued=after.queued,
        devices_used=after.devices_used,
    )


def _grown(before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    # The series of an endpoint that went take their counts with them.
    return tuple(max(0, new - old) for old, new in zip(before, after, strict=True))


def quantile(
    counts: Sequence[int], share: float, bounds: Sequence[float] = FIRST_TOKEN_BOUNDS
) -> float | None:
    """Return the value below which `share` of the counts lie; None if there are none.

    Straight within a bucket, as Prometheus does it; above all bounds, the highest of them.
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    low, passed = 0.0, 0
    for high, count in zip(bounds, counts, strict=False):
        if count and passed + count >= wanted:
            return low + (high - low) * (wanted - passed) / count
        low, passed = high, passed + count
    return bounds[-1]
