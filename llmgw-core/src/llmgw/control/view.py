"""What people and metrics may read of the fleet: plain values, made on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmgw.clock import Clock
from llmgw.contracts.placement import PlacementPolicy
from llmgw.control.decide.endpoints import MadeEndpoints, find_endpoints, model_statuses
from llmgw.control.decide.explain import explain_on_node, explain_refused
from llmgw.control.decide.reconcile import reconcile
from llmgw.control.decide.snapshot import ClusterSnapshot, NodeRecord, ReplicaRecord
from llmgw.control.loops.reconciler import Reconciler
from llmgw.control.observe import Observer, Stores
from llmgw.control.state.desired import Catalog
from llmgw.domain.catalog import Model
from llmgw.domain.endpoints import Endpoint, ModelStatus
from llmgw.domain.ids import DeviceId, Epoch, ModelName, NodeId
from llmgw.domain.plans import Plan, Refusal, StartReplica
from llmgw.domain.replicas import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node, and what of it is taken."""

    record: NodeRecord
    silent_s: float
    replicas: tuple[Replica, ...]
    booked: frozenset[DeviceId]

    @property
    def free_devices(self) -> int | None:
        """Devices that nobody holds; None: the node has not registered with this server."""
        if self.record.inventory is None:
            return None
        return sum(device.id not in self.booked for device in self.record.inventory.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """A catalog entry, its state for routers, and its replicas."""

    model: Model
    status: ModelStatus
    replicas: tuple[Replica, ...]
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What putting other entries in force would change."""

    plan: Plan
    added: tuple[ModelName, ...]
    removed: tuple[ModelName, ...]
    changed: tuple[ModelName, ...]
    starts: tuple[StartReplica, ...]
    leaves: tuple[Replica, ...]  #: drained, then stopped
    devices: int  #: that the starts take
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How the control plane itself is."""

    leading: bool
    leader: str | None
    epoch: Epoch
    settled: bool
    settles_in_s: float | None
    braked: bool  #: the mass-loss brake holds: many nodes fell silent at once
    passes: int
    failed: int  #: passes that a bug has ended
    last_pass_s: float


class FleetView:
    """The read model; nothing here changes anything.

    Listings look afresh and belong on the event loop. `explain_model`, `explain_node` and
    `plan_preview` may take long on a large fleet; they work on the newest snapshot that a loop
    took (at most a publish interval old), so that they can be called on any thread.
    """

    def __init__(
        self,
        stores: Stores,
        observer: Observer,
        reconciler: Reconciler,
        *,
        policy: PlacementPolicy,
        made: MadeEndpoints,
        clock: Clock,
    ) -> None:
        """made: of whoever publishes; only what has changed since is made for a listing."""
        self._stores = stores
        self._observer = observer
        self._reconciler = reconciler
        self._policy = policy
        self._clock = clock
        self._made = made

    def snapshot(self) -> ClusterSnapshot:
        """Return the fleet as decisions see it now."""
        return self._observer.observe(self._clock.monotonic())

    def _latest(self) -> ClusterSnapshot:
        return self._observer.latest or self.snapshot()

    def standing(self) -> Standing:
        """Return whether this server leads, and how its planning goes."""
        snapshot = self.snapshot()
        return Standing(
            leading=snapshot.leading,
            leader=self._stores.leadership.leader,
            epoch=snapshot.epoch,
            settled=snapshot.settled,
            settles_in_s=self._observer.settles_in_s,
            braked=self._stores.inventory.braked,
            passes=self._reconciler.passes,
            failed=self._reconciler.failed,
            last_pass_s=self._reconciler.last_pass_s,
        )

    def nodes(self) -> tuple[NodeView, ...]:
        """Return all nodes by id."""
        snapshot = self.snapshot()
        replicas: dict[NodeId, list[Replica]] = {}
        booked: dict[NodeId, set[DeviceId]] = {}
        for record in snapshot.replicas:
            for node, spec in record.shards:
                replicas.setdefault(node, []).append(record.replica)
                booked.setdefault(node, set()).update(spec.devices)
        return tuple(
            NodeView(
                record=snapshot.nodes[node],
                silent_s=snapshot.now - self._stores.inventory.last_seen[node],
                replicas=tuple(replicas.get(node, ())),
                booked=frozenset(booked.get(node, ())),
            )
            for node in sorted(snapshot.nodes)
        )

    def replicas(self) -> tuple[ReplicaRecord, ...]:
        """Return all replicas by id, with their orders and places."""
        return self.snapshot().replicas

    def models(self) -> tuple[ModelView, ...]:
        """Return all catalog entries in catalog order."""
        snapshot = self.snapshot()
        endpoints = find_endpoints(snapshot, made=self._made)
        statuses = model_statuses(
            snapshot,
            self._made,
            wake_s=self._stores.wake.wake_s,
            created=self._stores.desired.catalog.created,
        )
        by_name = {status.names[0]: status for status in statuses}
        replicas: dict[ModelName, list[Replica]] = {}
        for record in snapshot.replicas:
            replicas.setdefault(record.replica.model, []).append(record.replica)
        serving: dict[ModelName, list[Endpoint]] = {}
        for item in endpoints:
            serving.setdefault(item.models[0], []).append(item)
        return tuple(
            ModelView(
                model=model,
                status=by_name[model.name],
                replicas=tuple(replicas.get(model.name, ())),
                endpoints=tuple(serving.get(model.name, ())),
            )
            for model in snapshot.models
        )

    def explain_model(self, name: str) -> Refusal | None:
        """Return why another replica of the model could not start now, per profile and node.

        None: it could, or nothing of this name (or alias) is in the catalog.
        """
        snapshot = self._latest()
        model = snapshot.model(self._stores.desired.resolve(name) or ModelName(name))
        return None if model is None else explain_refused(snapshot, model, self._policy)

    def explain_node(self, node: NodeId) -> tuple[Refusal, ...]:
        """Return, per model and profile that could not get another replica on the node, why not."""
        return explain_on_node(self._latest(), node, self._policy)

    def plan_preview(self, entries: Sequence[Model]) -> Preview:
        """Return what these entries would change, by the code that would change it."""
        before = self._latest()
        catalog = Catalog.of(entries, created={})
        after = replace(
            before,
            models=catalog.models,
            hashes=catalog.hashes,
            setbacks={},
            leading=True,
            settled=True,
            term=max(1, before.term),
        )
        plan = reconcile(after, self._policy).plan
        known = {model.name: model for model in before.models}
        wanted = {model.name: model for model in entries}
        starts = tuple(
            action
            for action in plan.actions
            if isinstance(action, StartReplica)
            and not any(action.replica == record.id for record in before.replicas)
        )
        leaving = {
            action.replica for action in plan.actions if not isinstance(action, StartReplica)
        }
        return Preview(
            plan=plan,
            added=tuple(sorted(wanted.keys() - known.keys())),
            removed=tuple(sorted(known.keys() - wanted.keys())),
            changed=tuple(
                sorted(name for name in known.keys() & wanted.keys() if known[name] != wanted[name])
            ),
            starts=starts,
            leaves=tuple(
                record.replica
                for record in before.replicas
                if record.id in leaving and not record.leaving
            ),
            devices=sum(len(spec.devices) for action in starts for _, spec in action.shards),
            refusals=plan.unplaced,
        )
