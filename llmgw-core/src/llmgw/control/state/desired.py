"""What should be: the catalog, the orders of this leadership, and what it has learnt to avoid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmgw.control.decide.parts import keys_of
from llmgw.control.decide.reconcile import Decision
from llmgw.control.decide.snapshot import (
    Avoidance,
    Intent,
    Order,
    Pressure,
    ReplicaRecord,
    Setback,
)
from llmgw.domain.catalog import Model, spec_hash
from llmgw.domain.commands import LoraAdapter
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import ModelName, NodeId, ProfileName, ReplicaId
from llmgw.domain.plans import (
    Action,
    AdaptReplica,
    DrainReplica,
    Refusal,
    SleepReplica,
    StartReplica,
    StopReplica,
    WakeReplica,
)

#: A port that a stranger held is tried again after this long.
PORT_BLOCKED_S = 600.0
#: Failures on a node are forgotten this long after the pause for the last one ended.
FORGIVEN_AFTER_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The entries in force, with what is computed of them once."""

    models: tuple[Model, ...] = ()
    hashes: Mapping[ModelName, Mapping[ProfileName, str]]
    created: Mapping[ModelName, int]

    @classmethod
    def of(cls, models: Sequence[Model], *, created: Mapping[ModelName, int]) -> Catalog:
        """Build it; `created` holds Unix seconds by name."""
        return cls(
            models=tuple(models),
            hashes={
                model.name: {item.name: spec_hash(model, item) for item in model.profiles}
                for model in models
            },
            created=created,
        )


class Desired:
    """Intent, in memory: what has to survive is in the store or on the nodes."""

    def __init__(self) -> None:
        self.revision = 0
        self.changes = 0  #: of what routers hear about models that cannot run
        self.next_number = 1
        self.catalog = Catalog(hashes={}, created={})
        self.orders: dict[ReplicaId, Order] = {}
        self._withdrawn: dict[ReplicaId, int] = {}  #: serial that routers were told so with
        self._adapted: dict[ReplicaId, tuple[LoraAdapter, ...]] = {}  #: what was ordered last
        self.avoided: dict[tuple[str, NodeId], Avoidance] = {}
        self.setbacks: Mapping[ModelName, Setback] = {}
        self.pressure: Mapping[ModelName, Pressure] = {}
        self._blocked: dict[tuple[str, int], float] = {}
        self._model_of: dict[str, ModelName] = {}

    def set_catalog(self, models: Sequence[Model], *, wall: float) -> None:
        """Replace the entries. Entries that stay keep their age."""
        before = self.catalog.created
        created = {model.name: before.get(model.name, int(wall)) for model in models}
        self.catalog = Catalog.of(models, created=created)
        self._model_of = {
            name: model.name for model in models for name in (*model.names, *model.adapters)
        }
        self.setbacks = {}
        self.revision += 1

    def resolve(self, name: str) -> ModelName | None:
        """Return the canonical name behind a name or alias."""
        return self._model_of.get(name)

    def begin_leadership(self) -> None:
        """Start without orders: nodes report what runs, and an old order would be a second truth."""
        self.orders.clear()
        self._withdrawn.clear()
        self._adapted.clear()
        self.avoided.clear()
        self.setbacks, self.pressure = {}, {}
        self.next_number = 1
        self.revision += 1

    def apply(
        self, decision: Decision, records: Mapping[ReplicaId, ReplicaRecord], *, now: float
    ) -> tuple[Action, ...]:
        """Record a decision; return the actions that are new, for the operator's timeline."""
        new = tuple(
            action
            for action in decision.plan.actions
            if self._order(action, records, decision.victims, now)
        )
        self.avoided.update(decision.avoided)
        self.avoided = {
            key: item for key, item in self.avoided.items() if item.until + FORGIVEN_AFTER_S > now
        }
        if _refusals(decision.setbacks) != _refusals(self.setbacks):
            self.changes += 1
        self._blocked.update(dict.fromkeys(decision.blocked_ports, now + PORT_BLOCKED_S))
        self.setbacks, self.pressure = decision.setbacks, decision.pressure
        if new:
            self.revision += 1
        return new

    def drop(self, replica: ReplicaId) -> Order | None:
        """Forget the order, which has been carried out, or whose node is gone for good; return it."""
        self._withdrawn.pop(replica, None)
        self._adapted.pop(replica, None)
        order = self.orders.pop(replica, None)
        if order is not None:
            self.revision += 1
        return order

    def forget_node(self, node: NodeId) -> None:
        """Drop orders for a node that an operator says runs nothing."""
        for order in list(self.orders.values()):
            if any(place == node for place, _ in order.shards):
                self.drop(order.replica)
        self.avoided = {key: item for key, item in self.avoided.items() if key[1] != node}

    def retry(self, model: ModelName) -> frozenset[NodeId]:
        """Forget where the model's present versions failed; return those nodes."""
        hashes = frozenset(self.catalog.hashes[model].values())
        failed = [key for key in self.avoided if key[0] in hashes]
        for key in failed:
            del self.avoided[key]
        forgotten = keys_of(model)
        self.setbacks = {key: item for key, item in self.setbacks.items() if key not in forgotten}
        self.revision += 1
        return frozenset(node for _, node in failed)

    def end(self, record: ReplicaRecord, because: str, *, now: float) -> None:
        """Order a replica's end; the next passes carry it out."""
        self.orders[record.id] = Order(
            replica=record.id,
            model=record.replica.model,
            intent=Intent.STOP,
            shards=record.shards,
            since=now,
            because=because,
        )
        self.revision += 1

    def note_withdrawals(self, endpoints: Iterable[Endpoint], serial: int) -> None:
        """Note with which serial routers were first told of what drains by order."""
        new = {
            order.replica
            for order in self.orders.values()
            if order.intent is Intent.DRAIN and order.replica not in self._withdrawn
        }
        if new:
            new -= {item.replica for item in endpoints if item.replica and not item.draining}
            self._withdrawn.update(dict.fromkeys(new, serial))

    def withdrawn(self, in_force: int) -> frozenset[ReplicaId]:
        """Return what drains by order and is out of every router that has this serial in force."""
        return frozenset(id_ for id_, serial in self._withdrawn.items() if serial <= in_force)

    def blocked_ports(self, now: float) -> frozenset[tuple[str, int]]:
        """Return (machine, port) of ports that strangers were found on lately."""
        self._blocked = {key: until for key, until in self._blocked.items() if until > now}
        return frozenset(self._blocked)

    def _order(
        self,
        action: Action,
        records: Mapping[ReplicaId, ReplicaRecord],
        victims: Mapping[str, ModelName],
        now: float,
    ) -> bool:
        """Record one action; False if the order stands already."""
        before = self.orders.get(action.replica)
        if isinstance(action, StartReplica):
            if before is not None:
                return False
            self.next_number += 1
            self.orders[action.replica] = Order(
                replica=action.replica,
                model=action.model,
                intent=Intent.RUN,
                shards=action.shards,
                since=now,
                because=action.because,
            )
            return True
        if isinstance(action, AdaptReplica):
            known = self._adapted.get(action.replica)
            self._adapted[action.replica] = action.adapters
            return known != action.adapters
        intent = _INTENTS[type(action)]
        if before is not None and before.intent is intent:
            return False
        self._withdrawn.pop(action.replica, None)
        record = records[action.replica]
        grace_s = action.grace_s if isinstance(action, StopReplica) else None
        victim_for = victims.get(action.replica, before.victim_for if before else None)
        if intent is Intent.RUN:
            victim_for = None
        self.orders[action.replica] = Order(
            replica=action.replica,
            model=record.replica.model,
            intent=intent,
            shards=record.shards,
            since=now,
            because=action.because,
            grace_s=grace_s,
            victim_for=victim_for,
        )
        return True


_INTENTS: dict[type, Intent] = {
    DrainReplica: Intent.DRAIN,
    SleepReplica: Intent.SLEEP,
    StopReplica: Intent.STOP,
    WakeReplica: Intent.RUN,
}


def _refusals(setbacks: Mapping[ModelName, Setback]) -> dict[ModelName, Refusal]:
    return {model: setback.refusal for model, setback in setbacks.items()}
