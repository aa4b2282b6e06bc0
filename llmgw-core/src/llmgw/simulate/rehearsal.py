"""What would run where: the real planner over a fleet that is only described."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llmgw.contracts.placement import PlacementPolicy
from llmgw.control.decide.parts import parts_of, role_of
from llmgw.control.decide.reconcile import reconcile
from llmgw.control.decide.snapshot import ClusterSnapshot, Engine, Limits, NodeRecord, Wanted
from llmgw.domain.catalog import Model, spec_hash
from llmgw.domain.ids import ModelName, NodeId, SessionId
from llmgw.domain.nodes import NodeInventory, NodeState
from llmgw.domain.plans import Refusal, StartReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What the end of one node would do."""

    node: NodeId
    moved: tuple[StartReplica, ...]  #: replicas that would start elsewhere
    refused: tuple[Refusal, ...]  #: what would then run less often than it should


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The planner's answer for a described fleet and catalog."""

    placed: tuple[StartReplica, ...]
    refused: tuple[Refusal, ...]
    free_devices: Mapping[NodeId, int]
    losses: tuple[Loss, ...]  #: one per node that would run something


def rehearse(
    fleet: Sequence[NodeInventory],
    catalog: Sequence[Model],
    *,
    policy: PlacementPolicy,
    engines: Mapping[str, Engine],
    awake: bool = False,
    losses: bool = True,
    limits: Limits | None = None,
) -> Rehearsal:
    """Return what would run where, what would not and why, and what a lost node would do.

    awake: also place models that may sleep, as if somebody waited for each. losses: also try
    the end of each node in turn, which takes as long as placing everything for each of them.
    """
    snapshot = ClusterSnapshot(
        now=0.0,
        models=tuple(catalog),
        hashes={
            model.name: {profile.name: spec_hash(model, profile) for profile in model.profiles}
            for model in catalog
        },
        nodes={inventory.node: _ready(inventory) for inventory in fleet},
        engines=engines,
        wanted=_everybody(catalog) if awake else {},
        limits=limits or Limits(),
    )
    plan = reconcile(snapshot, policy).plan
    placed = tuple(action for action in plan.actions if isinstance(action, StartReplica))
    return Rehearsal(
        placed=placed,
        refused=plan.unplaced,
        free_devices=_free(fleet, placed),
        losses=tuple(
            _lose(snapshot, placed, inventory.node, policy)
            for inventory in fleet
            if losses
            and any(node == inventory.node for action in placed for node, _ in action.shards)
        ),
    )


def _lose(
    snapshot: ClusterSnapshot,
    placed: Sequence[StartReplica],
    lost: NodeId,
    policy: PlacementPolicy,
) -> Loss:
    """Place the lost replicas into what the others leave free, the others staying where they are."""
    stay = [action for action in placed if all(node != lost for node, _ in action.shards)]
    missing = Counter(
        (action.model, action.shards[0][1].role) for action in placed if action not in stay
    )
    fleet = _without(snapshot, stay, lost)
    models = tuple(
        part.model_copy(update={"replicas": _exactly(part, missing[part.name, role_of(part)])})
        for model in snapshot.models
        for part in parts_of(model)
        if missing[part.name, role_of(part)]
    )
    plan = reconcile(replace(fleet, models=models, wanted={}), policy).plan
    moved = tuple(action for action in plan.actions if isinstance(action, StartReplica))
    return Loss(node=lost, moved=moved, refused=plan.unplaced)


def _without(
    snapshot: ClusterSnapshot, stay: Sequence[StartReplica], lost: NodeId
) -> ClusterSnapshot:
    """Return the fleet with the devices and ports of those that stay taken out of it."""
    taken = {device for action in stay for _, spec in action.shards for device in spec.devices}
    nodes = {}
    for node, record in snapshot.nodes.items():
        if node == lost or record.inventory is None:
            continue
        devices = tuple(item for item in record.inventory.devices if item.id not in taken)
        nodes[node] = replace(record, inventory=replace(record.inventory, devices=devices))
    ports = frozenset(
        (snapshot.nodes[node].machine, port)
        for action in stay
        for node, spec in action.shards
        for port in spec.ports
    )
    return replace(snapshot, nodes=nodes, blocked_ports=ports)


def _exactly(model: Model, count: int) -> object:
    return model.replicas.model_copy(update={"min": count, "max": max(count, model.replicas.max)})


def _ready(inventory: NodeInventory) -> NodeRecord:
    return NodeRecord(
        id=inventory.node,
        state=NodeState.READY,
        since=0.0,
        session=SessionId("rehearsal/1"),
        inventory=inventory,
    )


def _everybody(catalog: Sequence[Model]) -> dict[ModelName, Wanted]:
    return {model.name: Wanted(since=0.0, newest=0.0) for model in catalog}


def _free(fleet: Sequence[NodeInventory], placed: Sequence[StartReplica]) -> dict[NodeId, int]:
    taken: dict[NodeId, int] = {}
    for action in placed:
        for node, spec in action.shards:
            taken[node] = taken.get(node, 0) + len(spec.devices)
    return {item.node: len(item.devices) - taken.get(item.node, 0) for item in fleet}
