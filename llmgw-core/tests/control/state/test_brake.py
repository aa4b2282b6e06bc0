"""The mass-loss brake as the inventory applies it, over time."""

from __future__ import annotations

from llmgw.control.decide.lifecycle import SilenceLimits
from llmgw.control.state.inventory import Inventory
from llmgw.domain.ids import Epoch, NodeId, SessionId
from llmgw.domain.nodes import NodeState
from llmgw.domain.reports import Registration
from llmgw.testing import values

NODES = [f"n{number}" for number in range(5)]


def register(fleet: Inventory, *nodes: str, now: float) -> None:
    for node in nodes:
        registration = Registration(
            session=SessionId(f"{node}/{now}"),
            inventory=values.inventory(node),
            epoch=Epoch(0),
            cluster_id=None,
            shards=(),
        )
        fleet.registered(registration, now=now)


def test_the_last_nodes_to_come_back_are_not_lost_when_the_first_ones_end_the_brake() -> None:
    """F14: 60 % fell silent at once; they register within a second, not within one instant."""
    limits = SilenceLimits(lost_after=20.0, brake_grace=90.0)
    fleet = Inventory(limits=limits, drain_limit_s=300.0, now=0.0)
    register(fleet, *NODES, now=0.0)
    register(fleet, "n3", "n4", now=25.0)
    fleet.judge(25.0)
    assert fleet.braked

    register(fleet, "n0", "n1", "n3", "n4", now=26.0)
    fleet.judge(26.0)
    assert not fleet.braked
    assert fleet.nodes[NodeId("n2")].state is not NodeState.LOST

    register(fleet, "n0", "n1", "n3", "n4", now=116.0)
    fleet.judge(116.0)
    assert fleet.nodes[NodeId("n2")].state is NodeState.LOST  # it is no fault of ours any more
