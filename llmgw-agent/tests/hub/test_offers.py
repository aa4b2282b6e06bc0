"""Which nodes another one may fetch weights from."""

from __future__ import annotations

from typing import Any

from llmgw.domain.ids import NodeId
from llmgw.domain.nodes import CachedWeights, NodeInventory
from llmgw_agent.hub.offers import MOST_PEERS, choose_peers

REF = "hf:org/name@main"


def node(name: str, *, manifest: str | None = "one", **fields: Any) -> NodeInventory:
    return NodeInventory(
        node=NodeId(name),
        agent_uid=name,
        boot_id="b",
        machine_id=fields.pop("machine_id", "m"),
        agent_version="0.1.0",
        hostname=name,
        data_address=fields.pop("data_address", "10.0.0.1"),
        weights=(CachedWeights(ref=REF, size_bytes=1, manifest=manifest),),
        weights_port=fields.pop("weights_port", 8083),
        **fields,
    )


def chosen(asker: NodeInventory, *others: NodeInventory) -> list[str]:
    offer = choose_peers(REF, asker, others)
    return [peer.node for peer in offer.peers] if offer else []


def test_who_has_them_whole_and_has_a_door_is_named() -> None:
    assert chosen(
        node("a"),
        node("a"),
        node("b"),
        node("c", manifest=None),
        node("d", weights_port=None),
        node("e", leaving=True),
    ) == ["b"]
    assert choose_peers("hf:org/other@main", node("a"), [node("b")]) is None


def test_a_door_that_only_its_own_machine_can_reach_is_for_that_machine_alone() -> None:
    inside = node("b", data_address="127.0.0.1", machine_id="one")
    assert chosen(node("a", machine_id="one"), inside) == ["b"]
    assert chosen(node("a", machine_id="two"), inside) == []
    assert chosen(node("a", machine_id="two"), node("c", data_address="::1")) == []
    assert chosen(node("a"), node("d", data_address="no address"), inside) == []


def test_the_nearest_come_first() -> None:
    asker = node("a", fabric={"ib": "rail-1", "ib.address": "10.1.0.1"}, pool="chat")
    same_rail = node("z", fabric={"ib": "rail-1", "ib.address": "10.1.0.9"}, pool="chat")
    same_pool = node("y", fabric={"ib": "rail-2"}, pool="chat")
    stranger = node("b", fabric={"ib.address": "10.1.0.1"})
    assert chosen(asker, stranger, same_pool, same_rail) == ["z", "y", "b"]


def test_different_files_under_one_ref_are_never_mixed() -> None:
    offer = choose_peers(
        REF, node("a"), [node("b", manifest="old"), node("c"), node("d", manifest="old")]
    )
    assert offer is not None
    assert offer.manifest == "old"
    assert {peer.node for peer in offer.peers} == {"b", "d"}


def test_many_that_ask_at_once_do_not_all_come_to_the_same_few() -> None:
    having = [node(f"n{number}") for number in range(20)]
    named = [chosen(node(f"asker-{number}"), *having) for number in range(20)]
    assert all(len(names) == MOST_PEERS for names in named)
    assert len({name for names in named for name in names}) > 15
