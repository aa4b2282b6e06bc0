"""The metrics page: bounded, escaped, and written without holding the loop."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from llmgw.router.metrics import Histogram, Now, RouterMetrics

pytestmark = pytest.mark.anyio

NOW = Now(queued=3, idle_connections=0, access_dropped=0)


async def test_a_histogram_counts_at_and_above_its_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1]
    assert histogram.total == 12.0


async def test_others_get_their_turn_while_a_large_page_is_written() -> None:
    metrics = RouterMetrics()
    for number in range(2000):
        metrics.series(f"m{number}", "e").duration.observe(1.0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        page = await metrics.render(NOW)
        tasks.cancel_scope.cancel()
    assert turns > 100
    assert b"llmgw_queued_requests 3\n" in page


async def test_names_are_escaped() -> None:
    metrics = RouterMetrics()
    metrics.series('a"b\\c\nd', "e").outcomes["ok"] = 1
    page = await metrics.render(NOW)
    assert b'model="a\\"b\\\\c\\nd"' in page


async def test_what_is_gone_is_dropped_once_nothing_runs_on_it() -> None:
    metrics = RouterMetrics()
    busy = metrics.series("m", "busy")
    busy.in_flight = 1
    metrics.series("m", "idle")
    metrics.count_refused(None, 404)
    metrics.count_refused("gone", 429)
    metrics.keep_only(frozenset(), frozenset({"m"}))
    page = (await metrics.render(NOW)).decode()
    assert 'endpoint="busy"' in page
    assert 'endpoint="idle"' not in page
    assert 'model="gone"' not in page
    assert 'model="other",status="404"' in page
    busy.in_flight = 0
    assert b'endpoint="busy"' in await metrics.render(NOW)
    assert b'endpoint="busy"' not in await metrics.render(NOW)
