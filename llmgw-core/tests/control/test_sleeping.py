"""Idle models sleep, somebody who waits wakes them, and room is made fairly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmgw.domain.commands import StartShard
from llmgw.domain.endpoints import ModelState
from llmgw.domain.ids import NodeId
from llmgw.testing import values

pytestmark = pytest.mark.anyio
N1 = NodeId("n1")


def sleepy(name: str, *, devices: int = 0, priority: int = 0, idle_after: float = 60.0) -> Any:
    return values.model(
        name,
        values.profile(devices=devices, priority=priority),
        replicas={"min": 0},
        idle_after=idle_after,
    )


def starts(site: Any) -> int:
    return sum(isinstance(command, StartShard) for _, command in site.fleet.sent)


async def test_a_model_with_min_0_sleeps_until_somebody_waits_and_starts_once_for_all(
    site: Any,
) -> None:
    await site.serve([sleepy("m")], values.inventory("n1"))
    assert site.replicas() == []
    assert site.router.status("m").state is ModelState.ASLEEP
    for _ in range(50):
        site.plane.nudge("m")
    await site.turn()
    assert site.router.status("m").state is ModelState.WAKING
    for _ in range(50):
        site.plane.nudge("m")
    await site.settle()
    assert site.router.status("m").state is ModelState.SERVING
    assert starts(site) == 1


async def test_an_idle_model_goes_to_sleep_and_a_used_one_does_not(site: Any) -> None:
    await site.serve([sleepy("m")], values.inventory("n1"))
    site.plane.nudge("m")
    await site.settle()
    (endpoint,) = site.router.ids
    site.router.use(endpoint, in_flight=1)
    await site.turn(20, after_s=10.0)
    assert site.router.ids == [endpoint]
    site.router.use(endpoint, idle_s=59.0)
    await site.turn()
    assert site.router.ids == [endpoint]
    site.router.use(endpoint, idle_s=61.0)
    await site.settle()
    assert site.replicas() == []
    assert site.router.status("m").state is ModelState.ASLEEP


async def test_without_a_usage_source_nothing_is_known_to_be_idle(
    make_site: Callable[..., Any],
) -> None:
    site = make_site(usage_is_known=False)
    await site.serve([sleepy("m")], values.inventory("n1"))
    site.plane.nudge("m")
    await site.settle()
    await site.turn(30, after_s=10.0)
    assert site.replicas() == ["n1:ready"]


async def test_a_request_that_comes_while_the_model_stops_is_served_by_a_new_start(
    site: Any,
) -> None:
    await site.serve([sleepy("m", devices=1)], values.inventory("n1", devices=1))
    site.plane.nudge("m")
    await site.settle()
    site.router.use(site.router.ids[0], idle_s=100.0)
    await site.turn(60, after_s=1.0)
    assert site.replicas() == ["n1:stopping"]
    site.plane.nudge("m")
    for _ in range(5):
        await site.turn()
        assert site.router.status("m").state is ModelState.WAKING
    await site.settle(12)
    assert site.router.status("m").state is ModelState.SERVING


async def test_an_idle_model_makes_room_for_one_that_somebody_waits_for(site: Any) -> None:
    await site.serve(
        [sleepy("a", devices=1, idle_after=9999), sleepy("b", devices=1)],
        values.inventory("n1", devices=1),
    )
    site.plane.nudge("a")
    await site.settle()
    await site.turn(40, after_s=1.0)
    site.router.use(site.router.ids[0], idle_s=40.0)
    site.plane.nudge("b")
    await site.turn(2)
    assert site.router.status("b").state is ModelState.WAKING
    await site.settle(12)
    assert [item.models[0] for item in site.router.endpoints[-1]] == ["b"]
    assert site.router.status("a").state is ModelState.ASLEEP


async def test_a_model_that_answers_is_not_cut_but_must_give_way_in_the_end(site: Any) -> None:
    await site.serve(
        [sleepy("a", devices=1), sleepy("b", devices=1)], values.inventory("n1", devices=1)
    )
    site.plane.nudge("a")
    await site.settle()
    (endpoint,) = site.router.ids
    site.router.use(endpoint, in_flight=3)
    for _ in range(40):
        site.plane.nudge("b")
        await site.turn(after_s=1.0)
    assert site.router.ids == [endpoint]
    for _ in range(30):
        site.plane.nudge("b")
        await site.turn(after_s=1.0)
    assert site.router.ids == []  # takes no new request, but ends what it answers
    assert site.replicas() == ["n1:draining"]
    site.router.use(endpoint, in_flight=0)
    await site.settle(16)
    assert [item.models[0] for item in site.router.endpoints[-1]] == ["b"]


async def test_a_more_important_model_is_never_put_to_sleep_for_a_lesser_one(site: Any) -> None:
    await site.serve(
        [sleepy("a", devices=1, priority=5, idle_after=9999), sleepy("b", devices=1)],
        values.inventory("n1", devices=1),
    )
    site.plane.nudge("a")
    await site.settle()
    for _ in range(100):
        site.plane.nudge("b")
        await site.turn(after_s=1.0)
    assert [item.models[0] for item in site.router.endpoints[-1]] == ["a"]
    status = site.router.status("b")
    assert status.state is ModelState.UNPLACEABLE
    assert status.refusal.parts[0].parts[0].code == "devices_busy"


async def test_two_models_that_take_turns_both_get_served(site: Any) -> None:
    await site.serve(
        [sleepy("a", devices=1), sleepy("b", devices=1)], values.inventory("n1", devices=1)
    )
    served: set[str] = set()
    for turn in range(300):
        for name in {"a", "b"} - {item.models[0] for item in site.router.endpoints[-1]}:
            site.plane.nudge(name)
        for endpoint in site.router.ids:
            site.router.use(endpoint, in_flight=turn % 2, idle_s=0.0)
        site.fleet.settle()
        await site.turn(after_s=1.0)
        served |= {item.models[0] for item in site.router.endpoints[-1]}
        assert sum(len(report.spec.devices) for report in site.fleet.nodes[N1].shards.values()) <= 1
    assert served == {"a", "b"}
    assert 4 <= starts(site) <= 10


async def test_load_above_target_adds_replicas_and_less_takes_them_away_one_by_one(
    site: Any,
) -> None:
    model = values.model("m", replicas={"min": 1, "max": 3, "target_inflight": 10})
    await site.serve([model], values.inventory("n1"))
    (first,) = site.router.ids
    site.router.use(first, in_flight=25)
    await site.turn(5, after_s=2.0)
    assert len(site.replicas()) == 1  # a short peak is not worth a load
    await site.turn(5, after_s=2.0)
    await site.settle()
    assert len(site.router.ids) == 3
    for endpoint in site.router.ids:
        site.router.use(endpoint, in_flight=1)
    await site.turn(50, after_s=5.0)
    assert len(site.router.ids) == 3
    counts = set()
    for _ in range(200):
        for endpoint in site.router.ids:
            site.router.use(endpoint, in_flight=0)
        site.fleet.settle()
        await site.turn(after_s=5.0)
        counts.add(len(site.router.ids))
    assert counts == {3, 2, 1}
    assert len(site.router.ids) == 1
