"""What one answered request adds to the counters of its model and endpoint."""

from __future__ import annotations

from bisect import bisect_left

from llmgw.router.metrics import DURATION_BOUNDS, Series
from llmgw.router.sse import Usage


def observe(
    series: Series, stream: bool, usage: Usage | None, first_s: float | None, duration_s: float
) -> None:
    """Count durations and tokens. Where the engine said nothing of usage, nothing is invented."""
    duration = series.duration
    duration.counts[bisect_left(DURATION_BOUNDS, duration_s)] += 1  # `observe`, without a call
    duration.total += duration_s
    if stream and first_s is not None:
        series.first_token.observe(first_s)
    if usage is None:
        return
    series.prompt_tokens += usage.prompt_tokens or 0
    series.cached_tokens += usage.cached_tokens or 0
    tokens = usage.completion_tokens or 0
    series.completion_tokens += tokens
    if stream and first_s is not None and tokens > 1:
        series.per_token.observe((duration_s - first_s) / (tokens - 1))
