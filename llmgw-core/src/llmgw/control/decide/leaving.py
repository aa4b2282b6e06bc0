"""How a replica goes: withdrawn from routers, drained, stopped, in this order."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.control.decide.roles import MAY_HOLD_REQUESTS, is_busy
from llmgw.control.decide.snapshot import ClusterSnapshot, Intent, ReplicaRecord
from llmgw.domain.plans import DrainReplica, StopReplica
from llmgw.domain.replicas import ReplicaState, ShardState


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next thing to do with a replica that goes."""

    action: DrainReplica | StopReplica | None
    recheck_after_s: float | None = None


def leave(snapshot: ClusterSnapshot, record: ReplicaRecord, because: str) -> Step:
    """Return the next step out.

    Stopping what routers still know turns a planned change into failed requests, so a replica
    that may hold requests is drained: it is un-routed at once, and stopped when routers and
    engine say that nothing is open, or at the drain limit.
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
    if drained_s >= limits.withdraw_for and not is_busy(snapshot, record):
        return Step(action=StopReplica(replica=record.id, because=because))
    reported = all(shard.state is ShardState.DRAINING for shard in record.replica.shards)
    repeat = None if reported else DrainReplica(replica=record.id, because=because)
    left_s = limits.withdraw_for - drained_s
    return Step(
        action=repeat,
        # A busy replica is looked at again when usage is: at each pass of the loop.
        recheck_after_s=left_s if left_s > 0 else min(1.0, limits.drain_limit - drained_s),
    )


def _draining_since(record: ReplicaRecord) -> float | None:
    if record.order is not None and record.order.intent is Intent.DRAIN:
        return record.order.since
    if record.replica.state is ReplicaState.DRAINING:
        return record.replica.since  # ordered by an earlier leadership
    return None
