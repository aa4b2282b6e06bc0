"""Whether a replica that is not needed now sleeps instead of being stopped, and how deeply.

The ladder: serving, the engine's own sleep, stopped, weights evicted. A sleeping engine lends
its devices to others and keeps its process: waking takes seconds, a load takes minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.control.decide.codes import RefusalCode as Code
from llmgw.control.decide.parts import part_of
from llmgw.control.decide.roles import is_asleep
from llmgw.control.decide.snapshot import ClusterSnapshot, NodeRecord, ReplicaRecord
from llmgw.domain.catalog import Model
from llmgw.domain.plans import Refusal
from llmgw.domain.replicas import ShardState

#: Main memory that must be left when weights are kept in it, over their size.
RAM_MARGIN = 1.25
CAPABILITY, GUARDED = "sleep", "guarded"  #: that an agent announces


@dataclass(frozen=True, slots=True)
class Rest:
    """How a replica may rest."""

    level: int | None  #: None: not at all
    refusal: Refusal | None = None  #: where the engine could and the node may not


def rest_of(snapshot: ClusterSnapshot, record: ReplicaRecord) -> Rest:
    """Return at which level a drained replica may sleep.

    Only what could serve again as it is: of a version in force, on a node that stays, of one
    shard, and with devices to give back.
    """
    model, node = snapshot.model(record.replica.model), snapshot.nodes.get(record.nodes[0])
    engine = snapshot.engines.get(record.spec.engine)
    if model is None or node is None or engine is None or not _may_return(snapshot, model, record):
        return Rest(None)
    levels = engine.sleep_levels(record.spec)
    if not levels or node.inventory is None or CAPABILITY not in node.inventory.capabilities:
        return Rest(None)
    if engine.traits.sleep_is_open and GUARDED not in node.inventory.capabilities:
        return Rest(None, _unsafe(model, record, node))
    return Rest(1 if 1 in levels and _has_ram(snapshot, record, node, levels) else max(levels))


def _may_return(snapshot: ClusterSnapshot, model: Model, record: ReplicaRecord) -> bool:
    node = snapshot.nodes[record.nodes[0]]
    role = record.spec.role
    others = sum(
        is_asleep(other) and other.id != record.id and other.spec.role is role
        for other in snapshot.replicas_of(model.name)
    )
    return (
        snapshot.profile_of(model, record) is not None
        and len(record.shards) == 1
        and bool(record.spec.devices)
        and all(shard.state is ShardState.DRAINING for shard in record.replica.shards)
        and node.session is not None
        and not node.draining
        and others < part_of(model, role).replicas.max
    )


def _has_ram(
    snapshot: ClusterSnapshot, record: ReplicaRecord, node: NodeRecord, levels: frozenset[int]
) -> bool:
    """Return whether the weights may be kept in main memory; where nothing else is left, they are."""
    if levels == {1}:
        return True
    facts = snapshot.facts.get(record.spec.weights)
    size_mib = facts.weights_mib if facts else None
    if size_mib is None and record.spec.memory_mib is not None:
        size_mib = float(record.spec.memory_mib * len(record.spec.devices))  # not less than that
    available = node.inventory.ram_available_mib if node.inventory else None
    return size_mib is not None and available is not None and available >= size_mib * RAM_MARGIN


def _unsafe(model: Model, record: ReplicaRecord, node: NodeRecord) -> Refusal:
    return Refusal(
        code=Code.SLEEP_UNSAFE,
        sentence=f"{record.spec.engine} is stopped instead of put to sleep: its sleep endpoints "
        f"ask for no key, and others reach the engines of {node.id}",
        model=model.name,
        node=node.id,
        hint="load the firewall of `llmgw service firewall` there and set engine_firewall",
    )
