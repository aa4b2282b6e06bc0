"""What silence makes of a node, and what its shards make of a replica."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from llmgw.domain.ids import NodeId
from llmgw.domain.nodes import NodeState
from llmgw.domain.replicas import ReplicaState, Shard, ShardState


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceLimits:
    """Seconds without a sign of a node, and the brakes on losing many at once."""

    suspect_after: float = 15.0
    disconnected_after: float = 45.0
    lost_after: float | None = 300.0  #: None: never by itself
    brake_share: float = 0.5  #: this share of the fleet …
    brake_count: int = 3  #: … and at least so many nodes …
    brake_window: float = 60.0  #: … fell silent within so long: none of them becomes lost
    brake_grace: float = 90.0  #: nor does any for so long after the brake was let go
    lost_pace: float = 10.0  #: otherwise one node per so long


class Vitals(NamedTuple):
    """What decides over one node's state. A tuple, since half a large fleet may be silent."""

    node: NodeId
    state: NodeState
    last_seen: float
    session_live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """New states of the nodes whose state changes."""

    changed: Mapping[NodeId, NodeState]
    braked: bool = False  #: somebody would be lost, were it not for the mass-loss brake
    recheck_after_s: float | None = None  #: None: nobody is on the way to another state


def judge_nodes(
    fleet: Sequence[Vitals],
    *,
    now: float,
    limits: SilenceLimits,
    well: int = 0,
    longest_s: float = 0.0,
    last_lost_at: float | None = None,
    grace_until: float = 0.0,
) -> Judgement:
    """Return what each node's silence means now.

    well: further nodes, of which none is silent for longer than `longest_s` nor long enough to
    matter: of a large fleet nearly all.

    A silent agent is no dead engine, so only `lost` has consequences beyond its own node, and
    it is braked twice: half a fleet silent at once points at our own network, and a slow
    cascade is easier to stop than a fast one. Before `grace_until` nobody becomes lost: a new
    leader, or one whose store just came back, has heard of nobody for reasons of its own.
    """
    changed: dict[NodeId, NodeState] = {}
    waits = [limits.suspect_after - longest_s] if well else []
    due: list[Vitals] = []
    fleet = [item for item in fleet if item.state is not NodeState.FENCED]
    for item in fleet:
        silent_s = now - item.last_seen
        found, step_s = _by_silence(silent_s, limits, session_live=item.session_live)
        if item.state is NodeState.LOST:
            if found is NodeState.READY:  # once lost, only a sign of life takes it back
                changed[item.node] = found
            continue
        if limits.lost_after is not None and silent_s >= limits.lost_after:
            due.append(item)
        if found is not item.state:
            changed[item.node] = found
        if step_s is not None:
            waits.append(step_s)
    held = due
    if due and now >= grace_until:
        held = _held_by_brake(due, fleet, well, now=now, limits=limits)
        kept = {item.node for item in held}  # of half a large fleet, compared one by one, too many
        free = [item for item in due if item.node not in kept]
        pause_s = 0.0 if last_lost_at is None else last_lost_at + limits.lost_pace - now
        if free and pause_s <= 0:
            first = min(free, key=lambda item: (item.last_seen, item.node))
            changed[first.node] = NodeState.LOST
            pause_s = limits.lost_pace
        if len(free) > 1 or (free and pause_s > 0):
            waits.append(pause_s)
    elif due:
        waits.append(grace_until - now)
    return Judgement(
        changed=changed,
        braked=bool(held) and now >= grace_until,
        recheck_after_s=min(waits, default=None),
    )


def _by_silence(
    silent_s: float, limits: SilenceLimits, *, session_live: bool
) -> tuple[NodeState, float | None]:
    """Return what a silence means, and after how long more; None: it means all that it can."""
    if silent_s < limits.suspect_after:
        # Without a session nothing can be ordered there anyway.
        state = NodeState.READY if session_live else NodeState.SUSPECT
        return state, limits.suspect_after - silent_s
    if silent_s < limits.disconnected_after:
        return NodeState.SUSPECT, limits.disconnected_after - silent_s
    if limits.lost_after is None or silent_s >= limits.lost_after:
        return NodeState.DISCONNECTED, None
    return NodeState.DISCONNECTED, limits.lost_after - silent_s


def _held_by_brake(
    due: Sequence[Vitals],
    fleet: Sequence[Vitals],
    well: int,
    *,
    now: float,
    limits: SilenceLimits,
) -> list[Vitals]:
    """Return those that fell silent together with half the fleet."""
    silences = sorted(
        item.last_seen
        for item in fleet
        if item.state is not NodeState.LOST and now - item.last_seen >= limits.suspect_after
    )
    needed = max(limits.brake_count, limits.brake_share * (len(fleet) + well))
    return [
        item
        for item in due
        if bisect_right(silences, item.last_seen + limits.brake_window)
        - bisect_left(silences, item.last_seen - limits.brake_window)
        >= needed
    ]


_STARTING = (
    ShardState.ASSIGNED,
    ShardState.INSTALLING,
    ShardState.FETCHING,
    ShardState.STARTING,
)
_WORST_FIRST: tuple[tuple[ShardState, ReplicaState], ...] = (
    (ShardState.BACKOFF, ReplicaState.BACKOFF),
    (ShardState.UNHEALTHY, ReplicaState.UNHEALTHY),
    *((state, ReplicaState.STARTING) for state in _STARTING),
    (ShardState.SLEEPING, ReplicaState.SLEEPING),
    (ShardState.READY, ReplicaState.READY),
)


def derive_replica(
    shards: Sequence[Shard],
    *,
    shard_count: int,
    node_states: Mapping[NodeId, NodeState],
    nodes: Collection[NodeId],
    ordered: bool = True,
    leaving: bool = False,
) -> tuple[ReplicaState, str]:
    """Return what the shards' states amount to, and why in a few words ("" where it is plain).

    shards: those reported. nodes: of all its shards, reported or not. ordered: what is not
    reported yet is on its way. A replica is as well as its worst shard: one engine missing from
    a gang means that nothing is served.
    """
    states = {shard.state for shard in shards}
    for shard in shards:
        if shard.state is ShardState.UNKILLABLE:
            return ReplicaState.UNKILLABLE, _why(shard, "could not be ended")
    for node in sorted(nodes):
        node_state = node_states.get(node)
        if node_state is None:  # forgotten by an operator
            return ReplicaState.LOST, f"node {node} is not known any more"
        if node_state in (NodeState.LOST, NodeState.FENCED):
            return ReplicaState.LOST, f"node {node} is {node_state}"
    if shards and len(shards) == shard_count and states == {ShardState.STOPPED}:
        return ReplicaState.STOPPED, "ended as ordered"
    if leaving and states & {ShardState.STOPPED, ShardState.STOPPING, ShardState.FAILED}:
        return ReplicaState.STOPPING, ""
    for shard in shards:
        if shard.state is ShardState.FAILED:
            return ReplicaState.FAILED, _why(shard, "failed")
    for shard in shards:
        if shard.state is ShardState.STOPPED:
            return ReplicaState.FAILED, f"shard {shard.id} ended while others run"
    for node in sorted(nodes):
        if (node_state := node_states[node]) is not NodeState.READY:
            return ReplicaState.UNREACHABLE, f"node {node} is {node_state}"
    if ShardState.STOPPING in states:
        return ReplicaState.STOPPING, ""
    if len(shards) < shard_count and not ordered:
        # Adopted in part: its node is there and does not list it, so it will never be whole.
        return ReplicaState.FAILED, f"{shard_count - len(shards)} of {shard_count} shards are gone"
    if len(shards) < shard_count:
        return (
            ReplicaState.PENDING,
            f"{shard_count - len(shards)} of {shard_count} not reported yet",
        )
    if ShardState.DRAINING in states:
        return ReplicaState.DRAINING, ""
    for shard_state, replica_state in _WORST_FIRST:
        for shard in shards:
            if shard.state is shard_state:
                return replica_state, _why(shard, "")
    return ReplicaState.PENDING, "nothing reported yet"


def _why(shard: Shard, plain: str) -> str:
    if shard.state is ShardState.READY:
        return ""  # an old, survived failure is kept on the shard, but is not why it is ready
    if shard.failure is not None:
        return shard.failure.sentence
    if shard.progress is not None:
        return shard.progress.what
    return plain


def settled(
    *,
    now: float,
    began: float,
    settle_s: float,
    known: AbstractSet[NodeId],
    registered: AbstractSet[NodeId],
    first_registration: float | None,
    first_node_s: float = 3.0,
) -> tuple[bool, float | None]:
    """Return whether the fleet has reported enough to plan on, and seconds until that may change.

    All known nodes are back, or the window is over; with no known node, a short while after
    the first one registered. Planning earlier would start a second copy of what runs.
    """
    left_s = began + settle_s - now
    if left_s <= 0:
        return True, None
    if known:
        return (True, None) if known <= registered else (False, left_s)
    if first_registration is None:
        return False, left_s
    left_s = min(left_s, first_registration + first_node_s - now)
    return (True, None) if left_s <= 0 else (False, left_s)
