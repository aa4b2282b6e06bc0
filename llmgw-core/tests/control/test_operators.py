"""Cordon, drain, fence, forget; previews and explanations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from llmgw.domain.ids import NodeId
from llmgw.domain.replicas import Failure, FailureCause, ShardState
from llmgw.testing import values

pytestmark = pytest.mark.anyio
N1, N2 = NodeId("n1"), NodeId("n2")


@dataclass(frozen=True)
class Said:
    """What an operator decided about a node."""

    id: NodeId
    cordoned: str | None = None
    draining: str | None = None
    drain_until: float | None = None
    fenced: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


async def test_a_cordoned_node_keeps_what_it_runs_and_gets_nothing_new(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    site.plane.know_nodes([Said(N1, cordoned="new disk")])
    site.plane.set_catalog([values.model("m"), values.model("n")])
    await site.settle()
    assert site.replicas("m") == ["n1:ready"]
    refusal = site.plane.view.explain_model("n")
    assert refusal.parts[0].parts[0].code == "node_cordoned"
    assert "new disk" in refusal.sentence
    site.plane.know_nodes([Said(N1)])
    await site.settle()
    assert site.replicas("n") == ["n1:ready"]


async def test_a_drained_node_is_empty_after_replacements_have_come_up(site: Any) -> None:
    models = [values.model(name) for name in ("a", "b", "c")]
    await site.serve(models, values.inventory("n1"))
    site.fleet.join(values.inventory("n2"))
    site.plane.know_nodes([Said(N1, draining="kernel")])
    for _ in range(20):
        site.fleet.settle()
        await site.turn()
        assert {item.models[0] for item in site.router.endpoints[-1]} == {"a", "b", "c"}
    assert site.replicas() == ["n2:ready"] * 3


async def test_a_drain_without_room_elsewhere_ends_at_its_limit(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    until = site.clock.wall() + 60.0
    site.plane.know_nodes([Said(N1, draining="kernel", drain_until=until)])
    await site.turn(50, after_s=1.0)
    assert site.replicas() == ["n1:ready"]
    await site.turn(20, after_s=1.0)
    await site.settle()
    assert site.replicas() == []


async def test_a_fenced_node_frees_its_models_at_once_and_is_welcome_back(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"), values.inventory("n2"))
    site.fleet.cut(N1)
    site.plane.know_nodes([Said(N1, fenced="burnt down"), Said(N2)])
    await site.settle()
    assert site.replicas() == ["n2:ready"]
    site.fleet.reconnect(N1)
    await site.settle(12)
    assert len(site.replicas()) == 1
    site.plane.know_nodes([Said(N1, fenced="burnt down"), Said(N2, cordoned="x")])
    await site.settle()
    states = {node.record.id: node.record.state for node in site.plane.view.nodes()}
    assert states[N1] == "ready"  # the same fence is not in force a second time


async def test_a_forgotten_node_is_gone_with_what_it_was_believed_to_run(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"), values.inventory("n2"))
    site.fleet.cut(N1)
    site.plane.forget_node(N1)
    await site.settle()
    assert site.replicas() == ["n2:ready"]
    assert [node.record.id for node in site.plane.view.nodes()] == [N2]


async def test_labels_that_an_operator_set_count_over_the_node_s_own(site: Any) -> None:
    model = values.model("m", values.profile(labels={"zone": "b"}))
    await site.serve([model], values.inventory("n1", labels={"zone": "a"}))
    assert site.replicas() == []
    site.plane.know_nodes([Said(N1, labels={"zone": "b"})])
    await site.settle()
    assert site.replicas() == ["n1:ready"]


async def test_a_preview_says_what_would_change_and_changes_nothing(site: Any) -> None:
    keep, go = values.model("keep"), values.model("go")
    await site.serve([keep, go], values.inventory("n1", devices=2))
    before = len(site.fleet.sent)
    big = values.model("big", values.profile(devices=4))
    new = values.model("new", values.profile(devices=2))
    preview = site.plane.view.plan_preview([keep, new, big])
    assert (preview.added, preview.removed, preview.changed) == (("big", "new"), ("go",), ())
    assert [action.model for action in preview.starts] == ["new"]
    assert preview.devices == 2
    assert [replica.model for replica in preview.leaves] == ["go"]
    assert [refusal.model for refusal in preview.refusals] == ["big"]
    await site.turn(5)
    assert len(site.fleet.sent) == before


async def test_an_explanation_names_the_cheapest_way_out(site: Any) -> None:
    idle = values.model("idle", values.profile(devices=1), replicas={"min": 0}, idle_after=9999)
    more = values.model("more", values.profile(devices=1, priority=3))
    await site.serve([idle], values.inventory("n1", devices=1))
    site.plane.nudge("idle")
    await site.settle()
    site.router.use(site.router.ids[0], idle_s=2400.0)
    await site.turn(100, after_s=1.0)
    site.plane.set_catalog([idle, more])
    site.plane.publish_now()
    refusal = site.plane.view.explain_model("more")
    assert refusal.hint == "to place more: put idle (idle 40m) to sleep"
    assert [item.code for item in site.plane.view.explain_node(N1)] == ["devices_busy"] * 2


async def test_a_model_that_could_run_once_more_needs_no_explanation(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    assert site.plane.view.explain_model("m") is None
    assert site.plane.view.explain_model("nobody") is None


async def test_a_gang_comes_up_whole_and_is_restarted_whole(site: Any) -> None:
    gang = values.model("g", values.profile(devices=4, nodes=2, parallel={"tensor": 4}))
    fabric = {"ib": "rail-1"}
    nodes = [values.inventory(name, devices=2, fabric=fabric) for name in ("n1", "n2", "n3")]
    await site.serve([gang], *nodes)
    assert len(site.router.ids) == 1
    (before,) = site.plane.view.replicas()
    spec = before.shards[1][1]
    failure = Failure(cause=FailureCause.KILLED, message="gone")
    site.fleet.enter(spec.id, ShardState.FAILED, failure=failure)
    await site.turn()
    assert site.router.ids == []
    await site.settle(20)
    (after,) = site.plane.view.replicas()
    assert after.id != before.id
    assert len(site.router.ids) == 1
    assert sum(len(item.shards) for item in site.fleet.nodes.values()) == 2
