"""What every node said of its shards, put together to replicas.

Reports are the truth: a shard is here exactly while its node lists it. What this server ordered
and nobody reported yet is in `desired`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmgw.control.decide.lifecycle import derive_replica
from llmgw.control.decide.snapshot import Intent, NodeRecord, Order, ReplicaRecord
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import Epoch, NodeId, ReplicaId, ShardId
from llmgw.domain.replicas import (
    Failure,
    FailureCause,
    Replica,
    ReplicaState,
    Shard,
    ShardState,
)
from llmgw.domain.reports import Registration, Rejection, ShardReport

#: Ready for this long, and earlier failures do not count any more.
FORGIVEN_AFTER_S = 600.0
_CAUSES = {
    "device_busy": FailureCause.DEVICE_BUSY,
    "port_in_use": FailureCause.PORT_IN_USE,
    "bad_option": FailureCause.BAD_OPTION,
    "unknown_engine": FailureCause.ENGINE_MISSING,
}


@dataclass(frozen=True, slots=True)
class _Track:
    """What has to be remembered of a replica between two looks."""

    state: ReplicaState
    since: float
    first_ready: float | None
    restarts: int
    forgiven: int  #: restarts before it was last ready for long, or before it was known


class Replicas:
    """Shard reports by node, and the replicas that they make up."""

    def __init__(self) -> None:
        self.revision = 0  #: changes with whatever placement depends on
        self.changes = 0  #: counts everything taken in
        self._by_node: defaultdict[NodeId, dict[ShardId, ShardReport]] = defaultdict(dict)
        self._shards: defaultdict[ReplicaId, dict[ShardId, ShardReport]] = defaultdict(dict)
        self._rejected: dict[ShardId, tuple[NodeId, Failure]] = {}
        self._tracks: dict[ReplicaId, _Track] = {}
        # Records by id, and what they were made of: of a large fleet little changes at a time.
        self._records: dict[ReplicaId, ReplicaRecord] = {}
        self._listed: tuple[ReplicaRecord, ...] | None = ()  #: None: to be listed again
        self._stale: set[ReplicaId] = set()
        self._orders: Mapping[ReplicaId, Order] = {}
        self._placed_on: defaultdict[NodeId, set[ReplicaId]] = defaultdict(set)

    def registered(self, registration: Registration) -> None:
        """Replace all that was known of a node's shards."""
        node = registration.inventory.node
        self.forget_node(node)
        for report in registration.shards:
            self.reported(node, report)

    def forget_node(self, node: NodeId) -> None:
        """Drop a node's shards: it said that they are not there, or an operator did."""
        for shard in list(self._by_node[node]):
            self._remove(node, shard)
        del self._by_node[node]

    def reported(self, node: NodeId, report: ShardReport) -> None:
        """Take in one shard's present state. A stopped one is gone."""
        shard = report.shard
        if shard.state is ShardState.STOPPED:
            self._remove(node, shard.id)
            return
        before = self._by_node[node].get(shard.id)
        if before == report:
            return
        if before is None or before.shard.state is not shard.state:
            self.revision += 1
        self._rejected.pop(shard.id, None)
        self._by_node[node][shard.id] = report
        self._shards[shard.replica][shard.id] = report
        self._stale.add(shard.replica)
        self.changes += 1

    def rejected(self, rejection: Rejection, replica: ReplicaId) -> None:
        """Note that the node did not take a shard, as a failure of that shard."""
        failure = Failure(
            cause=_CAUSES.get(rejection.code, FailureCause.REFUSED),
            message=f"{rejection.node} refused it, {rejection.code}: {rejection.message}",
        )
        self._rejected[rejection.shard] = (rejection.node, failure)
        self._stale.add(replica)
        self.changes += 1
        self.revision += 1

    def is_reported(self, shard: ShardId, node: NodeId) -> bool:
        """Return whether the node lists the shard now."""
        return shard in self._by_node[node]

    def moved(self, nodes: Iterable[NodeId]) -> None:
        """Note that the state of these nodes has changed: what runs there depends on it."""
        self._stale.update(*(self._placed_on.get(node, ()) for node in nodes))

    def refresh(
        self,
        *,
        orders: Mapping[ReplicaId, Order],
        nodes: Mapping[NodeId, NodeRecord],
        now: float,
        limit: int | None = None,
    ) -> bool:
        """Put together anew what has changed, at most `limit` replicas; return whether more has."""
        self._stale |= self._touched(orders)
        if limit is None or len(self._stale) <= limit:
            chosen, self._stale = list(self._stale), set()
        else:
            chosen = [self._stale.pop() for _ in range(limit)]
        for replica in chosen:
            if (before := self._records.pop(replica, None)) is not None:
                for node in _places_of(before):
                    self._placed_on[node].discard(replica)
            if replica not in self._shards and replica not in orders:
                self._forget(replica, before)
                continue
            record = self._make(replica, orders.get(replica), nodes, now)
            self._records[replica] = record
            for node in _places_of(record):
                self._placed_on[node].add(replica)
        self._listed = None if chosen else self._listed
        return bool(self._stale)

    def records(
        self,
        *,
        orders: Mapping[ReplicaId, Order],
        nodes: Mapping[NodeId, NodeRecord],
        now: float,
    ) -> tuple[ReplicaRecord, ...]:
        """Return every replica that is reported or ordered, by id."""
        self.refresh(orders=orders, nodes=nodes, now=now)
        if self._listed is None:
            self._listed = tuple(self._records[replica] for replica in sorted(self._records))
        return self._listed

    def _touched(self, orders: Mapping[ReplicaId, Order]) -> set[ReplicaId]:
        """Return the replicas whose order has changed."""
        before, self._orders = self._orders, dict(orders)
        touched = before.keys() - orders.keys()
        touched |= {name for name, order in orders.items() if before.get(name) is not order}
        return touched

    def _make(
        self,
        replica: ReplicaId,
        order: Order | None,
        nodes: Mapping[NodeId, NodeRecord],
        now: float,
    ) -> ReplicaRecord:
        reports = dict(self._shards.get(replica, {}))
        placed: dict[ShardId, tuple[NodeId, ShardSpec]] = {}
        if order is not None:
            placed = {spec.id: (node, spec) for node, spec in order.shards}
        placed |= {report.shard.id: (report.shard.node, report.spec) for report in reports.values()}
        shards = {report.shard.id: report.shard for report in reports.values()}
        for shard, (node, spec) in placed.items():
            if shard not in shards and shard in self._rejected:
                shards[shard] = _refused_shard(node, spec, self._rejected[shard][1])
        in_order = sorted(placed.values(), key=lambda item: item[1].rank)
        spec = in_order[0][1]
        places = _nodes_of(spec) or [node for node, _ in in_order]
        state, reason = derive_replica(
            sorted(shards.values(), key=lambda shard: shard.rank),
            shard_count=spec.world_size,
            node_states={node: nodes[node].state for node in places if node in nodes},
            nodes=places,
            ordered=order is not None,
            leaving=order is not None and order.intent in (Intent.DRAIN, Intent.STOP),
        )
        restarts = sum(shard.restarts for shard in shards.values())
        track = self._follow(replica, state, restarts, now)
        epochs = [report.epoch for report in reports.values()]
        return ReplicaRecord(
            replica=Replica(
                id=replica,
                model=spec.model,
                profile=spec.profile,
                spec_hash=spec.spec_hash,
                epoch=max(epochs, default=Epoch(0)),
                state=state,
                reason=reason,
                shards=tuple(sorted(shards.values(), key=lambda shard: shard.rank)),
                shard_count=spec.world_size,
                since=track.since,
                first_ready=track.first_ready,
                failures=max(0, restarts - track.forgiven),
            ),
            shards=tuple(in_order),
            reports=reports,
            order=order,
        )

    def _follow(self, replica: ReplicaId, state: ReplicaState, restarts: int, now: float) -> _Track:
        before = self._tracks.get(replica)
        ready = state is ReplicaState.READY
        if before is None:
            forgiven = restarts if ready else 0
            track = _Track(state, now, now if ready else None, restarts, forgiven)
        else:
            was_long_ready = (
                before.state is ReplicaState.READY and now - before.since >= FORGIVEN_AFTER_S
            )
            first_ready = now if ready and before.first_ready is None else before.first_ready
            since = before.since if before.state is state else now
            forgiven = before.restarts if was_long_ready else before.forgiven
            track = _Track(state, since, first_ready, restarts, forgiven)
        self._tracks[replica] = track
        return track

    def _forget(self, replica: ReplicaId, last: ReplicaRecord | None) -> None:
        """Drop what was kept of a replica that nobody reports or wants any more."""
        self._tracks.pop(replica, None)
        for _, spec in last.shards if last is not None else ():
            self._rejected.pop(spec.id, None)

    def _remove(self, node: NodeId, shard: ShardId) -> None:
        report = self._by_node[node].pop(shard, None)
        if report is None:
            return
        replica = report.shard.replica
        self._shards[replica].pop(shard, None)
        if not self._shards[replica]:
            del self._shards[replica]
        self._stale.add(replica)
        self.changes += 1
        self.revision += 1


def _nodes_of(spec: ShardSpec) -> list[NodeId]:
    """Return the nodes of a gang, those included whose shards nobody reports; [] for one shard."""
    return [peer.node for peer in spec.peers]


def _places_of(record: ReplicaRecord) -> Sequence[NodeId]:
    """Return every node that the replica depends on."""
    return _nodes_of(record.spec) or record.nodes


def _refused_shard(node: NodeId, spec: ShardSpec, failure: Failure) -> Shard:
    return Shard(
        id=spec.id,
        replica=spec.replica,
        node=node,
        rank=spec.rank,
        state=ShardState.FAILED,
        devices=spec.devices,
        ports=spec.ports,
        failure=failure,
    )
