"""What must hold after every step, whatever has gone wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from llmgw.control.decide.endpoints import find_endpoints
from llmgw.control.decide.parts import parts_of, role_of
from llmgw.domain.ids import Epoch, NodeId
from llmgw.domain.plans import Refusal, StartReplica, WakeReplica
from llmgw.domain.replicas import ReplicaState, ShardState
from llmgw.simulate.nodes import ALIVE, SimNode
from llmgw.simulate.servers import SimServer


class Violation(AssertionError):
    """An invariant is broken; the message says which, where and what was seen."""


def check_devices(node: SimNode) -> None:
    """One exclusive owner per device and port, on the node itself."""
    owners: dict[object, str] = {}
    for engine in node.engines.values():
        if engine.state not in ALIVE:
            continue
        devices = engine.spec.devices if engine.holds_devices else ()
        for thing in (*devices, *engine.spec.ports):
            if thing in owners:
                raise Violation(f"{thing} of {node.id}: {owners[thing]} and {engine.spec.id}")
            owners[thing] = engine.spec.id


def check_epoch(node: SimNode, before: Epoch) -> None:
    """The epoch that a node obeys never falls."""
    if node.epoch < before:
        raise Violation(f"epoch of {node.id} fell from {before} to {node.epoch}")


def check_endpoints(server: SimServer, nodes: dict[NodeId, SimNode]) -> None:
    """No endpoint is published that this very incarnation did not show ready."""
    for endpoint in server.endpoints:
        shard, _, incarnation = endpoint.incarnation.rpartition("#")
        node = nodes.get(endpoint.node) if endpoint.node is not None else None
        if node is not None and (shard, int(incarnation)) not in node.shown_ready:
            raise Violation(f"{server.name} publishes {endpoint.id}, which was never ready")


def check_refusals(server: SimServer) -> None:
    """Every refusal, and every part of it, has a code and a sentence."""
    pending: list[Refusal] = list(server.decision.plan.unplaced)
    while pending:
        refusal = pending.pop()
        if not refusal.code or not refusal.sentence:
            raise Violation(f"{server.name} refuses without a reason: {refusal}")
        pending += refusal.parts


def check_plan(server: SimServer) -> None:
    """No plan gives away what a replica that it knows of holds, or one thing twice.

    A sleeping one holds its ports alone, until it is woken.
    """
    snapshot, actions = server.snapshot, server.decision.plan.actions
    if snapshot is None or not actions:
        return
    known = {record.id: record for record in snapshot.replicas}
    asleep = {key for key, item in known.items() if item.replica.state is ReplicaState.SLEEPING}
    owners = {
        (snapshot.nodes[node].machine, thing): record.id
        for record in known.values()
        for node, spec in record.shards
        if node in snapshot.nodes
        for thing in (*(() if record.id in asleep else spec.devices), *spec.ports)
    }
    for action in actions:
        if isinstance(action, StartReplica) and action.replica not in known:
            given = [(node, (*spec.devices, *spec.ports)) for node, spec in action.shards]
        elif isinstance(action, WakeReplica) and action.replica in asleep:
            given = [(node, spec.devices) for node, spec in known[action.replica].shards]
        else:
            continue
        for node, things in given:
            for thing in things:
                key = (snapshot.nodes[node].machine, thing)
                if key in owners:
                    raise Violation(
                        f"{server.name} gives {thing} of {node} to {action.replica} "
                        f"beside {owners[key]}"
                    )
                owners[key] = action.replica


def check_stop(server: SimServer | None, replica: str, state: ShardState) -> None:
    """An engine that may answer requests is stopped only after routers were told to stop asking."""
    if server is None or state is not ShardState.READY:
        return
    routed = [item.id for item in server.endpoints if not item.draining]
    if replica in routed:
        raise Violation(f"{replica} was stopped while {server.name} still routed to it")


def check_one_leader(servers: Iterable[SimServer]) -> None:
    """At most one server acts at a time."""
    leading = [server.name for server in servers if server.leads]
    if len(leading) > 1:
        raise Violation(f"{' and '.join(leading)} lead at once")


def check_converged(leader: SimServer, nodes: Sequence[SimNode]) -> None:
    """Some time after the last fault, what runs is what should run, and nothing else."""
    snapshot = leader.snapshot
    if snapshot is None:
        raise Violation("the leader never looked at the fleet")
    if find_endpoints(snapshot) != leader.endpoints:
        raise Violation("what was published differs from what a fresh look finds")
    refused = {refusal.model for refusal in leader.decision.plan.unplaced}
    for model in chain.from_iterable(map(parts_of, snapshot.models)):
        serving = [
            item
            for item in leader.endpoints
            if item.models[0] == model.name and item.role is role_of(model) and not item.draining
        ]
        if len(serving) < model.replicas.min and model.name not in refused:
            raise Violation(
                f"{model.name} has {len(serving)} of {model.replicas.min} and no reason why"
            )
        if len(serving) > model.replicas.max:
            raise Violation(f"{model.name} has {len(serving)}, at most {model.replicas.max}")
    known = {record.id for record in snapshot.replicas}
    for node in nodes:
        for engine in node.engines.values():
            if engine.spec.replica not in known:
                raise Violation(f"{engine.spec.id} on {node.id} is unknown to the leader")
            if engine.state in (ShardState.STOPPING, ShardState.FAILED):
                raise Violation(f"{engine.spec.id} on {node.id} is left {engine.state}")
    if leader.stores.desired.orders.keys() - known:
        raise Violation("orders about nothing are left")
