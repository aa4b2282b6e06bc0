"""How a replica goes: withdrawn from routers, drained, put to sleep or stopped, in this order."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.control.decide.roles import MAY_HOLD_REQUESTS, is_busy, on_draining_node
from llmgw.control.decide.sleeping import rest_of
from llmgw.control.decide.snapshot import ClusterSnapshot, Intent, ReplicaRecord
from llmgw.domain.catalog import Model
from llmgw.domain.plans import DrainReplica, SleepReplica, StopReplica
from llmgw.domain.replicas import ReplicaState, ShardState
from llmgw.domain.units import format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next thing to do with a replica that goes."""

    action: DrainReplica | SleepReplica | StopReplica | None
    recheck_after_s: float | None = None


def leave(snapshot: ClusterSnapshot, record: ReplicaRecord, because: str) -> Step:
    """Return the next step out.

    Stopping what routers still know turns a planned change into failed requests, so a replica
    that may hold requests is drained: it is un-routed at once, and stopped when every router has
    confirmed that (or is not waited for any longer), and routers and engine say that nothing is
    open; or at the drain limit. What could serve again as it is sleeps instead, where its engine
    can.
    """
    limits, order = snapshot.limits, record.order
    if order is not None and order.intent is Intent.STOP:
        return Step(
            action=StopReplica(replica=record.id, because=order.because, grace_s=order.grace_s),
            recheck_after_s=limits.resend_after,
        )
    if record.replica.state is ReplicaState.STOPPING:
        return Step(action=StopReplica(replica=record.id, because=because))
    if record.replica.state not in MAY_HOLD_REQUESTS and not (
        order and order.intent is Intent.DRAIN
    ):
        return Step(action=StopReplica(replica=record.id, because=because))
    since = _draining_since(record)
    if since is None:
        return Step(
            action=DrainReplica(replica=record.id, because=because),
            recheck_after_s=limits.withdraw_for,
        )
    because = order.because if order is not None else because
    drained_s = snapshot.now - since
    if drained_s >= limits.drain_limit:
        return Step(
            action=StopReplica(replica=record.id, because=f"{because}; drain limit reached")
        )
    confirmed = record.id in snapshot.withdrawn or drained_s >= limits.acknowledge_within
    if drained_s >= limits.withdraw_for and confirmed and not is_busy(snapshot, record):
        return Step(action=_sleep_or_stop(snapshot, record, because))
    reported = all(shard.state is ShardState.DRAINING for shard in record.replica.shards)
    repeat = None if reported else DrainReplica(replica=record.id, because=because)
    left_s = limits.withdraw_for - drained_s
    return Step(
        action=repeat,
        # One that is busy, or not confirmed, is looked at again when routers have reported.
        recheck_after_s=left_s if left_s > 0 else min(1.0, limits.drain_limit - drained_s),
    )


def rest(snapshot: ClusterSnapshot, model: Model, record: ReplicaRecord, *, is_spare: bool) -> Step:
    """Return the next step of a replica that sleeps or falls asleep.

    It sleeps on while it could serve again as it is. is_spare: more are there than may be.
    """
    limits, order = snapshot.limits, record.order
    if snapshot.profile_of(model, record) is None or on_draining_node(snapshot, record):
        return _end(record, "it sleeps, and could not serve again as it is")
    if is_spare:
        return _end(record, f"it sleeps, and replicas.max is {model.replicas.max}")
    if record.replica.state is ReplicaState.SLEEPING:
        left_s = record.replica.since + limits.sleep_limit - snapshot.now
        if left_s <= 0:
            return _end(record, f"asleep for {format_duration(limits.sleep_limit)}")
        return Step(action=None, recheck_after_s=left_s)
    if order is None or record.replica.state is not ReplicaState.DRAINING:
        return Step(action=None)  # its node is silent
    left_s = order.since + limits.sleep_within - snapshot.now
    action = _sleep_or_stop(snapshot, record, order.because)
    if left_s <= 0 or isinstance(action, StopReplica):
        return _end(record, f"{order.because}; it does not fall asleep")
    return Step(action=action, recheck_after_s=min(left_s, limits.resend_after))


def _end(record: ReplicaRecord, because: str) -> Step:
    return Step(action=StopReplica(replica=record.id, because=because))


def _sleep_or_stop(
    snapshot: ClusterSnapshot, record: ReplicaRecord, because: str
) -> SleepReplica | StopReplica:
    found = rest_of(snapshot, record)
    if found.level is not None:
        return SleepReplica(replica=record.id, because=because, level=found.level)
    if found.refusal is not None:
        because = f"{because}; {found.refusal.code}: {found.refusal.sentence}"
    return StopReplica(replica=record.id, because=because)


def _draining_since(record: ReplicaRecord) -> float | None:
    if record.order is not None and record.order.intent is Intent.DRAIN:
        return record.order.since
    if record.replica.state is ReplicaState.DRAINING:
        return record.replica.since  # ordered by an earlier leadership
    return None
