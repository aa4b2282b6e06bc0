"""Replicas are put together from reports, as few of them anew as have changed."""

from __future__ import annotations

from llmgw.control.decide.lifecycle import SilenceLimits
from llmgw.control.state.inventory import Inventory
from llmgw.control.state.replicas import Replicas
from llmgw.domain.ids import Epoch, NodeId, SessionId
from llmgw.domain.nodes import NodeState
from llmgw.domain.replicas import ReplicaState, ShardState
from llmgw.domain.reports import Heartbeat, Registration
from llmgw.testing import values

N1, SESSION = NodeId("n1"), SessionId("boot/1")


def inventory_of(now: float) -> Inventory:
    """Return an inventory in which one node has just registered."""
    inventory = Inventory(limits=SilenceLimits(), drain_limit_s=300.0, now=now)
    registration = Registration(
        session=SESSION, inventory=values.inventory("n1"), epoch=Epoch(1), cluster_id=None
    )
    inventory.registered(registration, now=now)
    return inventory


def test_much_that_has_changed_is_put_together_a_part_at_a_time() -> None:
    nodes, replicas = inventory_of(1000.0).nodes, Replicas()
    for number in range(5):
        replicas.reported(N1, values.report("n1", values.shard(f"r{number}.0")))
    rest = [replicas.refresh(orders={}, nodes=nodes, now=1000.0, limit=2) for _ in range(3)]
    assert rest == [True, True, False]
    listed = replicas.records(orders={}, nodes=nodes, now=1000.0)
    assert [record.id for record in listed] == ["r0", "r1", "r2", "r3", "r4"]
    assert replicas.records(orders={}, nodes=nodes, now=1001.0) is listed


def test_only_what_has_changed_is_put_together_anew() -> None:
    nodes, replicas = inventory_of(1000.0).nodes, Replicas()
    for number in range(2):
        replicas.reported(N1, values.report("n1", values.shard(f"r{number}.0")))
    before = replicas.records(orders={}, nodes=nodes, now=1000.0)
    report = values.report("n1", values.shard("r1.0"), ShardState.UNHEALTHY)
    replicas.reported(N1, report)
    after = replicas.records(orders={}, nodes=nodes, now=1001.0)
    assert after[0] is before[0]
    assert after[1].replica.state is ReplicaState.UNHEALTHY


def test_what_runs_on_a_node_follows_its_state() -> None:
    inventory, replicas = inventory_of(1000.0), Replicas()
    replicas.reported(N1, values.report("n1", values.shard("r.0")))
    replicas.moved(inventory.moved_nowait())
    replicas.records(orders={}, nodes=inventory.nodes, now=1000.0)
    inventory.judge(1020.0)
    assert inventory.nodes[N1].state is NodeState.SUSPECT
    assert inventory.moved_nowait() == {N1}
    replicas.moved([N1])
    (record,) = replicas.records(orders={}, nodes=inventory.nodes, now=1020.0)
    assert record.replica.state is ReplicaState.UNREACHABLE


def test_a_sign_of_life_that_says_nothing_new_leaves_the_record_of_a_node() -> None:
    inventory = inventory_of(1000.0)
    before = inventory.nodes[N1]
    assert inventory.heartbeat(N1, Heartbeat(session=SESSION, sequence=1), now=1005.0)
    assert inventory.nodes[N1] is before
    assert inventory.last_seen[N1] == 1005.0
    inventory.judge(1019.0)
    assert inventory.nodes[N1].state is NodeState.READY
