"""One pass carried out on the stores: decision in, commands out. No waiting, no transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmgw.control.decide.commands import commands_of
from llmgw.control.decide.reconcile import Decision
from llmgw.control.decide.snapshot import ClusterSnapshot, Order, ReplicaRecord
from llmgw.control.observe import Stores
from llmgw.control.state.told import Told
from llmgw.domain.commands import Command
from llmgw.domain.ids import NodeId, ReplicaId
from llmgw.domain.plans import Action, StopReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What is left to do with a decision once the stores know of it."""

    new: tuple[Action, ...]  #: actions that were not ordered before
    commands: Mapping[NodeId, tuple[Command, ...]]  #: due now, to nodes that can hear them
    stopping: tuple[ReplicaRecord, ...]


class Carrier:
    """Brings decisions into the stores and keeps the pace of repetition."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._told = Told()

    def take(
        self,
        snapshot: ClusterSnapshot,
        decision: Decision,
        told: Mapping[NodeId, tuple[Command, ...]],
    ) -> Errand:
        """Record the orders; return what nodes must hear now. told: what the plan tells each."""
        self._told.tidy(snapshot.replicas)
        records = records_of(snapshot, decision)
        new = self._stores.desired.apply(decision, records, now=snapshot.now)
        self._stores.wake.fulfil(decision.fulfilled)
        if new or decision.plan.unplaced:
            self._stores.wake.publisher.ring()  # un-routed before it is stopped
        due = {
            node: batch
            for node, commands in told.items()
            if (
                batch := self._told.due(
                    commands,
                    node=snapshot.nodes.get(node),
                    now=snapshot.now,
                    resend_after_s=snapshot.limits.resend_after,
                )
            )
        }
        return Errand(new=new, commands=due, stopping=_stopping(decision, records))

    def delivered(
        self, snapshot: ClusterSnapshot, node: NodeId, commands: Sequence[Command]
    ) -> None:
        """The node's session has taken these commands."""
        session = snapshot.nodes[node].session
        if session is not None:
            self._told.note(session, commands, now=snapshot.now)

    def finish(self, errand: Errand) -> tuple[Order, ...]:
        """Close stop orders of which no shard is left and every node has been told; return them."""
        stores = self._stores
        ended: list[Order] = []
        for record in errand.stopping:
            if any(stores.replicas.is_reported(spec.id, node) for node, spec in record.shards):
                continue
            if self._told.is_ended(record, stores.inventory.nodes):
                if (order := stores.desired.drop(record.id)) is not None:
                    ended.append(order)
                stores.wake.ring()
        return tuple(ended)


def records_of(snapshot: ClusterSnapshot, decision: Decision) -> Mapping[ReplicaId, ReplicaRecord]:
    """Return the replicas that the plan does something with, new ones left out."""
    touched = {action.replica for action in decision.plan.actions}
    return {item.id: item for item in snapshot.replicas if item.replica.id in touched}


def commands_for(
    snapshot: ClusterSnapshot, decision: Decision
) -> Mapping[NodeId, tuple[Command, ...]]:
    """Return what a decision tells each node; on any thread, since of a large one it is a lot."""
    return commands_of(decision.plan, records_of(snapshot, decision), snapshot.epoch)


def _stopping(
    decision: Decision, records: Mapping[ReplicaId, ReplicaRecord]
) -> tuple[ReplicaRecord, ...]:
    return tuple(
        record
        for action in decision.plan.actions
        if isinstance(action, StopReplica) and (record := records.get(action.replica)) is not None
    )
