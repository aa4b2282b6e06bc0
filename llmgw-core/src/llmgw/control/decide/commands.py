"""What each node is told for the actions of a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from llmgw.control.decide.snapshot import ReplicaRecord
from llmgw.domain.commands import (
    AdaptShard,
    Command,
    DrainShard,
    SleepShard,
    StartShard,
    StopShard,
    WakeShard,
)
from llmgw.domain.ids import Epoch, NodeId, ReplicaId, ShardId
from llmgw.domain.plans import (
    Action,
    AdaptReplica,
    DrainReplica,
    Plan,
    SleepReplica,
    StartReplica,
    StopReplica,
    WakeReplica,
)


def commands_of(
    plan: Plan, records: Mapping[ReplicaId, ReplicaRecord], epoch: Epoch
) -> Mapping[NodeId, tuple[Command, ...]]:
    """Return the commands of every action by node, in the order of the plan."""
    found: defaultdict[NodeId, list[Command]] = defaultdict(list)
    for action in plan.actions:
        for node, command in _commands(action, records.get(action.replica), epoch):
            found[node].append(command)
    return {node: tuple(commands) for node, commands in found.items()}


def shard_of(command: Command) -> ShardId:
    """Return the shard that a command is about."""
    return command.spec.id if isinstance(command, StartShard) else command.shard


def _commands(
    action: Action, record: ReplicaRecord | None, epoch: Epoch
) -> list[tuple[NodeId, Command]]:
    if isinstance(action, StartReplica):
        return [(node, StartShard(epoch=epoch, spec=spec)) for node, spec in action.shards]
    if record is None:
        return []
    return [
        (node, _command(action, spec.id, action.replica, epoch)) for node, spec in record.shards
    ]


def _command(
    action: DrainReplica | SleepReplica | StopReplica | WakeReplica | AdaptReplica,
    shard: ShardId,
    replica: ReplicaId,
    epoch: Epoch,
) -> Command:
    match action:
        case StopReplica():
            return StopShard(epoch=epoch, shard=shard, replica=replica, grace_s=action.grace_s)
        case DrainReplica():
            return DrainShard(epoch=epoch, shard=shard, replica=replica)
        case SleepReplica():
            return SleepShard(epoch=epoch, shard=shard, replica=replica, level=action.level)
        case WakeReplica():
            return WakeShard(epoch=epoch, shard=shard, replica=replica)
        case AdaptReplica():
            return AdaptShard(epoch=epoch, shard=shard, replica=replica, adapters=action.adapters)
