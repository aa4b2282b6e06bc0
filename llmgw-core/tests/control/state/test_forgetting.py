"""What is over leaves nothing behind that grows, or that something new of its name would inherit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.control.decide.lifecycle import SilenceLimits
from llmgw.control.decide.snapshot import Intent, Order, ReplicaRecord
from llmgw.control.state.inventory import Inventory
from llmgw.control.state.replicas import Replicas
from llmgw.control.state.told import Told
from llmgw.control.state.wake import Wake
from llmgw.domain.commands import ShardSpec, StopShard
from llmgw.domain.ids import Epoch, ModelName, NodeId, ReplicaId, SessionId
from llmgw.domain.nodes import NodeState
from llmgw.domain.replicas import Replica, ReplicaState
from llmgw.domain.reports import Registration, Rejection
from llmgw.testing import values

N1, SESSION = NodeId("n1"), SessionId("boot/1")


@dataclass(frozen=True)
class Said:
    """What an operator decided about a node."""

    id: NodeId = N1
    cordoned: str | None = None
    draining: str | None = None
    drain_until: float | None = None
    fenced: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


def register(inventory: Inventory, now: float) -> None:
    registration = Registration(
        session=SESSION, inventory=values.inventory("n1"), epoch=Epoch(1), cluster_id=None
    )
    inventory.registered(registration, now=now)


def test_a_node_that_was_forgotten_while_it_was_drained_is_given_its_whole_time_again() -> None:
    inventory = Inventory(limits=SilenceLimits(), drain_limit_s=300.0, now=0.0)
    register(inventory, 0.0)
    inventory.know([Said(draining="fans")], now=0.0, wall=0.0)
    assert inventory.nodes[N1].drain_ends == 300.0
    inventory.forget(N1)
    register(inventory, 5000.0)
    assert not inventory.nodes[N1].draining
    inventory.know([Said(draining="fans again")], now=5000.0, wall=5000.0)
    assert inventory.nodes[N1].drain_ends == 5300.0


def order(spec: ShardSpec) -> dict[ReplicaId, Order]:
    return {
        spec.replica: Order(
            replica=spec.replica,
            model=spec.model,
            intent=Intent.RUN,
            shards=((N1, spec),),
            since=0.0,
            because="",
        )
    }


def test_a_refusal_ends_with_the_order_that_was_refused() -> None:
    inventory, replicas = (
        Inventory(limits=SilenceLimits(), drain_limit_s=300.0, now=0.0),
        Replicas(),
    )
    register(inventory, 0.0)
    spec = values.shard("r.0")
    orders = order(spec)
    replicas.rejected(
        Rejection(node=N1, shard=spec.id, code="bad_option", message="no"), spec.replica
    )

    def states() -> list[ReplicaState]:
        records = replicas.records(orders=orders, nodes=inventory.nodes, now=1.0)
        return [record.replica.state for record in records]

    assert inventory.nodes[N1].state is NodeState.READY
    assert states() == [ReplicaState.FAILED]
    orders = {}
    assert states() == []
    orders = order(spec)
    assert states() == [ReplicaState.PENDING]


def test_who_waited_for_a_model_that_was_removed_does_not_wait_for_one_of_its_name() -> None:
    wake, name = Wake(), ModelName("m")
    wake.nudge(name, now=0.0)
    wake.measured(name, 40.0)
    wake.keep({ModelName("n")})
    wake.nudge(name, now=5000.0)
    assert wake.wanted[name].since == 5000.0
    assert wake.wake_s == {}


def test_what_was_told_of_replicas_that_are_over_is_not_kept_for_ever() -> None:
    told = Told()
    inventory = Inventory(limits=SilenceLimits(), drain_limit_s=300.0, now=0.0)
    register(inventory, 0.0)
    node = inventory.nodes[N1]
    specs = [values.shard(f"r{number}.0") for number in range(1000)]
    commands = [
        StopShard(epoch=Epoch(1), shard=spec.id, replica=spec.replica, grace_s=None)
        for spec in specs
    ]
    kept = ReplicaRecord(
        replica=Replica(
            id=specs[0].replica,
            model=specs[0].model,
            profile=specs[0].profile,
            spec_hash=specs[0].spec_hash,
            epoch=Epoch(1),
            state=ReplicaState.STOPPING,
        ),
        shards=((N1, specs[0]),),
    )
    told.note(node.session or SESSION, commands, now=0.0)
    assert told.due(commands, node=node, now=1.0, resend_after_s=5.0) == ()
    told.tidy([kept])
    assert len(told.due(commands, node=node, now=1.0, resend_after_s=5.0)) == 999
