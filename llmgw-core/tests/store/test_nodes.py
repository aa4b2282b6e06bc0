"""Known nodes, and what operators said of them."""

from __future__ import annotations

import pytest

from llmgw.domain.ids import NodeId
from llmgw.errors import RequestError
from llmgw.store import Store
from llmgw.store.nodes import SeenNode
from llmgw.testing.clock import FakeClock

GPU = NodeId("gpu-01")


def seen(at: float, *, node: NodeId = GPU, uid: str = "uid-1") -> SeenNode:
    return SeenNode(id=node, agent_uid=uid, machine_id="m", hostname="host", pool="default", at=at)


def test_a_node_is_known_from_its_first_sign_of_life_on(store: Store) -> None:
    store.nodes.record_seen([seen(10.0), seen(11.0, node=NodeId("gpu-02")), seen(12.0)])
    store.nodes.record_seen([seen(20.0, uid="uid-2")])
    first, second = store.nodes.list()
    assert (first.id, first.first_seen, first.last_seen) == (GPU, 10.0, 20.0)
    assert first.agent_uid == "uid-2"
    assert (second.id, second.last_seen) == ("gpu-02", 11.0)


def test_a_sign_of_life_takes_no_word_of_an_operator_back(store: Store) -> None:
    store.nodes.record_seen([seen(10.0)])
    store.nodes.cordon(GPU, "fan is loud")
    store.nodes.fence(GPU, "unplugged")
    store.nodes.set_labels(GPU, {"rack": "r1"})
    store.nodes.record_seen([seen(20.0)])
    (node,) = store.nodes.list()
    assert (node.cordoned, node.fenced, node.labels) == (
        "fan is loud",
        "unplugged",
        {"rack": "r1"},
    )


def test_a_drain_cordons_and_uncordon_ends_both(store: Store, clock: FakeClock) -> None:
    store.nodes.record_seen([seen(10.0)])
    drained = store.nodes.drain(GPU, "kernel update", limit_s=60)
    assert (drained.cordoned, drained.draining) == ("kernel update", "kernel update")
    assert drained.drain_until == clock.wall() + 60
    free = store.nodes.uncordon(GPU)
    assert (free.cordoned, free.draining, free.drain_until) == (None, None, None)


def test_a_node_that_is_not_known_is_said_by_name(store: Store) -> None:
    for act in (
        lambda: store.nodes.cordon(NodeId("ghost"), "x"),
        lambda: store.nodes.forget(NodeId("ghost")),
    ):
        with pytest.raises(RequestError, match="no node 'ghost' is known") as caught:
            act()
        assert caught.value.status == 404


def test_a_forgotten_node_is_gone_until_it_registers_again(store: Store) -> None:
    store.nodes.record_seen([seen(10.0)])
    store.nodes.forget(GPU)
    assert store.nodes.list() == ()
    store.nodes.record_seen([seen(20.0)])
    assert [node.first_seen for node in store.nodes.list()] == [20.0]
