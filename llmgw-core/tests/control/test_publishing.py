"""When the fleet is passed on to routers, and what ends with the control plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from llmgw.domain.replicas import ShardState
from llmgw.testing import values
from llmgw.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


async def test_a_replica_that_becomes_ready_is_published_before_any_timer(
    site: Any, clock: FakeClock
) -> None:
    async with anyio.create_task_group() as group:
        await group.start(site.plane.run)
        site.plane.set_catalog([values.model("m")])
        site.fleet.join(values.inventory("n1"))
        await clock.advance(5.0)
        (shard,) = next(iter(site.fleet.nodes.values())).shards
        assert site.router.ids == []
        site.fleet.enter(shard, ShardState.READY)
        await clock.advance(0.0)  # others get their turn, and no timer ends
        assert site.router.ids == [shard.rpartition(".")[0]]
        group.cancel_scope.cancel()


async def test_what_only_time_changes_is_published_within_the_interval(
    site: Any, make_site: Callable[..., Any], clock: FakeClock
) -> None:
    """That the fleet has settled is nobody's event: only the backstop notices."""
    await site.serve([values.model("m")], values.inventory("n1"))
    again = make_site(site.fleet, publish_interval=1.0)
    again.plane.set_catalog([values.model("m")])
    async with anyio.create_task_group() as group:
        await group.start(again.plane.run)
        for node in site.fleet.nodes:
            site.fleet.reconnect(node)
        await clock.advance(2.9)
        assert again.router.endpoints == []
        await clock.advance(1.2)
        assert len(again.router.ids) == 1
        group.cancel_scope.cancel()


async def test_the_usage_of_routers_is_one_snapshot_a_look_read_before_publishing(
    site: Any,
) -> None:
    await site.serve([values.model("m"), values.model("n")], values.inventory("n1"))
    reads: list[int] = []
    told = site.router.usage

    def count() -> Any:
        reads.append(len(site.router.endpoints))
        return told()

    site.router.usage = count
    pushes = len(site.router.endpoints)
    site.plane.set_catalog([values.model("m")])
    site.plane.publish_now()
    assert reads == [pushes]
    assert len(site.router.endpoints) == pushes + 1


async def test_a_catalog_is_told_once_a_change_and_not_once_a_look(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    told = len(site.router.models)
    for _ in range(5):
        site.plane.publish_now()
    assert len(site.router.models) == told
    site.plane.set_catalog([values.model("m", aliases=("other",))])
    site.plane.publish_now()
    assert len(site.router.models) == told + 1


async def test_nothing_is_ordered_or_published_after_the_end(site: Any, clock: FakeClock) -> None:
    async with anyio.create_task_group() as group:
        await group.start(site.plane.run)
        site.plane.set_catalog([values.model("m")])
        site.fleet.join(values.inventory("n1"))
        await clock.advance(5.0)
        group.cancel_scope.cancel()
    sent, told = len(site.fleet.sent), len(site.router.models)
    site.plane.set_catalog([values.model("other")])
    await clock.advance(60.0)
    assert (len(site.fleet.sent), len(site.router.models)) == (sent, told)
