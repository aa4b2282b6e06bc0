"""What each replica of one model is to the model now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llmgw.control.decide.snapshot import ClusterSnapshot, Intent, ReplicaRecord
from llmgw.domain.catalog import Model
from llmgw.domain.endpoints import EndpointUsage
from llmgw.domain.ids import EndpointId
from llmgw.domain.replicas import Failure, FailureCause, ReplicaState, Shard, ShardState

#: Trying again on the same devices and ports cannot help, so the replica moves at once.
MOVE_AT_ONCE = frozenset(
    {
        FailureCause.PORT_IN_USE,
        FailureCause.DEVICE_BUSY,
        FailureCause.DEVICE_LOST,
        FailureCause.REFUSED,
    }
)
#: It answers requests, or most likely does: its node is silent, which says nothing of its engines.
SERVING = frozenset({ReplicaState.READY, ReplicaState.UNREACHABLE})
#: Requests may be open on it, so it is drained before it is stopped.
MAY_HOLD_REQUESTS = SERVING | {ReplicaState.UNHEALTHY, ReplicaState.DRAINING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The replicas of one model, each in exactly one group."""

    fresh: tuple[ReplicaRecord, ...] = ()  #: as the catalog has it, running or on the way
    old: tuple[ReplicaRecord, ...] = ()  #: of another version, or on a node that is to be emptied
    asleep: tuple[ReplicaRecord, ...] = ()  #: the engine's own sleep, or on the way there
    leaving: tuple[ReplicaRecord, ...] = ()  #: draining or stopping
    dead: tuple[ReplicaRecord, ...] = ()  #: will not serve again where it is
    lost: tuple[ReplicaRecord, ...] = ()  #: on a lost node; perhaps it comes back

    @property
    def serving(self) -> tuple[ReplicaRecord, ...]:
        """Those that answer requests and are not told to go."""
        return tuple(item for item in (*self.fresh, *self.old) if is_serving(item))


def roles_of(snapshot: ClusterSnapshot, model: Model, records: Iterable[ReplicaRecord]) -> Roles:
    """Sort a model's replicas into groups."""
    fresh, old, asleep, leaving, dead, lost = [], [], [], [], [], []
    for record in records:
        state = record.replica.state
        drains = state is ReplicaState.DRAINING and not is_asleep(record)
        if record.leaving or drains or state is ReplicaState.STOPPING:
            leaving.append(record)
        elif state is ReplicaState.LOST:
            lost.append(record)
        elif is_dead(record, snapshot.limits.crash_limit):
            dead.append(record)
        elif is_asleep(record):
            asleep.append(record)
        elif snapshot.profile_of(model, record) is None or on_draining_node(snapshot, record):
            old.append(record)
        else:
            fresh.append(record)
    return Roles(
        fresh=tuple(fresh),
        old=tuple(old),
        asleep=tuple(asleep),
        leaving=tuple(leaving),
        dead=tuple(dead),
        lost=tuple(lost),
    )


def is_serving(record: ReplicaRecord) -> bool:
    """Return whether it answers requests, as far as anybody knows."""
    return record.replica.state in SERVING and not (
        record.replica.state is ReplicaState.UNREACHABLE and record.replica.first_ready is None
    )


def is_asleep(record: ReplicaRecord) -> bool:
    """Return whether the replica sleeps, or has been told to. Its node may be silent meanwhile."""
    if record.order is not None and record.order.intent is Intent.SLEEP:
        return True
    shards = record.replica.shards
    return bool(shards) and all(shard.state is ShardState.SLEEPING for shard in shards)


def is_dead(record: ReplicaRecord, crash_limit: int) -> bool:
    """Return whether its place must be given up: the agent gave up, or nothing there can help.

    A single shard in backoff is its agent's to restart, up to `crash_limit` times. A gang is
    restarted as a whole by us, so any failed member ends it.
    """
    state = record.replica.state
    if state in (ReplicaState.FAILED, ReplicaState.STOPPED):
        return True
    if state is not ReplicaState.BACKOFF:
        return False
    failed = failed_shard(record)
    if failed is None:
        return False
    if len(record.shards) > 1:
        return True
    cause = failed.failure.cause if failed.failure else FailureCause.UNKNOWN
    return cause in MOVE_AT_ONCE or record.replica.failures >= crash_limit


def failed_shard(record: ReplicaRecord) -> Shard | None:
    """Return the shard that tells why the replica is not well; None if none failed."""
    bad = [
        shard
        for shard in record.replica.shards
        if shard.state in (ShardState.FAILED, ShardState.BACKOFF)
    ]
    # In a gang the others die of the first one's death: what names another cause came first.
    bad.sort(
        key=lambda shard: (
            shard.failure is None or shard.failure.cause is FailureCause.GANG_MEMBER_DIED,
            shard.rank,
        )
    )
    return bad[0] if bad else None


def failure_of(record: ReplicaRecord) -> Failure | None:
    """Return why the replica failed."""
    shard = failed_shard(record)
    return shard.failure if shard else None


def usage_of(snapshot: ClusterSnapshot, record: ReplicaRecord) -> EndpointUsage | None:
    """Return what routers know of the replica; None: nothing."""
    return snapshot.usage.endpoints.get(EndpointId(record.id))


def is_busy(snapshot: ClusterSnapshot, record: ReplicaRecord) -> bool:
    """Return whether requests are open on it, by what routers or its engine say."""
    usage = usage_of(snapshot, record)
    if usage is not None and usage.in_flight > 0:
        return True
    loads = (snapshot.loads.get(spec.id) for _, spec in record.shards)
    return any((load.running or 0) + (load.waiting or 0) > 0 for load in loads if load)


def idle_s(snapshot: ClusterSnapshot, record: ReplicaRecord) -> float:
    """Return for how long no request was open on it; 0 while one is, or if that is not known."""
    if not snapshot.usage_known or is_busy(snapshot, record):
        return 0.0
    ready_s = snapshot.now - max(record.replica.since, record.replica.first_ready or 0.0)
    usage = usage_of(snapshot, record)
    if usage is None or usage.idle_s is None:
        return max(0.0, ready_s)
    # What was measured before it slept says nothing of the time since it was woken.
    return min(max(0.0, usage.idle_s), _woken_s(snapshot, record))


def resident_s(snapshot: ClusterSnapshot, record: ReplicaRecord) -> float:
    """Return for how long it has been of use: since it was first ready, or since it was woken."""
    ready = record.replica.first_ready
    return min(0.0 if ready is None else snapshot.now - ready, _woken_s(snapshot, record))


def _woken_s(snapshot: ClusterSnapshot, record: ReplicaRecord) -> float:
    """Return how long ago it was woken; infinity: it never was."""
    order, ready = record.order, record.replica.first_ready
    if order is None or ready is None or order.intent is not Intent.RUN or order.since <= ready:
        return float("inf")
    return snapshot.now - order.since


def on_draining_node(snapshot: ClusterSnapshot, record: ReplicaRecord) -> bool:
    """Return whether a node of the replica is to be emptied."""
    return any(node in snapshot.nodes and snapshot.nodes[node].draining for node in record.nodes)
