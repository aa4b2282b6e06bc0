"""Shard specifications and the commands that carry them."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.domain.commands import (
    AdaptShard,
    DrainShard,
    LoraAdapter,
    Peer,
    ShardSpec,
    SleepShard,
    StartShard,
    StopShard,
    WakeShard,
)
from llmgw.domain.ids import DeviceId, Epoch, ModelName, NodeId, ProfileName, ReplicaId, ShardId
from llmgw.domain.roles import Role
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.codec.scalars import options_text, options_value, text, texts


def encode_spec(spec: ShardSpec) -> pb.ShardSpec:
    return pb.ShardSpec(
        id=spec.id,
        replica=spec.replica,
        model=spec.model,
        served_names=spec.served_names,
        profile=spec.profile,
        spec_hash=spec.spec_hash,
        engine=spec.engine,
        engine_version=spec.engine_version,
        weights=text(spec.weights),
        options_json=options_text(spec.options),
        devices=[text(device) for device in spec.devices],
        rank=spec.rank,
        ports=spec.ports,
        tensor=spec.tensor,
        pipeline=spec.pipeline,
        data=spec.data,
        peers=[
            pb.Peer(
                rank=peer.rank,
                node=peer.node,
                address=peer.address,
                ports=peer.ports,
                devices=peer.devices,
            )
            for peer in spec.peers
        ],
        memory_mib=spec.memory_mib,
        command=(
            None
            if spec.command is None
            else pb.Command(argv=[text(argument) for argument in spec.command])
        ),
        env=texts(spec.env),
        pool=spec.pool,
        priority=spec.priority,
        weight=spec.weight,
        max_inflight=spec.max_inflight,
        start_limit_s=spec.start_limit_s,
        stop_grace_s=spec.stop_grace_s,
        adapters=_encode_adapters(spec.adapters),
        role=spec.role or "",
    )


def decode_spec(message: pb.ShardSpec) -> ShardSpec:
    return ShardSpec(
        id=ShardId(message.id),
        replica=ReplicaId(message.replica),
        model=ModelName(message.model),
        served_names=tuple(ModelName(name) for name in message.served_names),
        profile=ProfileName(message.profile),
        spec_hash=message.spec_hash,
        engine=message.engine,
        engine_version=message.engine_version if message.HasField("engine_version") else None,
        weights=message.weights,
        options=options_value(message.options_json),
        devices=tuple(DeviceId(device) for device in message.devices),
        rank=message.rank,
        ports=tuple(message.ports),
        tensor=message.tensor,
        pipeline=message.pipeline,
        data=message.data,
        peers=tuple(
            Peer(
                rank=peer.rank,
                node=NodeId(peer.node),
                address=peer.address,
                ports=tuple(peer.ports),
                devices=peer.devices,
            )
            for peer in message.peers
        ),
        memory_mib=message.memory_mib if message.HasField("memory_mib") else None,
        command=tuple(message.command.argv) if message.HasField("command") else None,
        env=dict(message.env),
        pool=message.pool,
        priority=message.priority,
        weight=message.weight,
        max_inflight=message.max_inflight if message.HasField("max_inflight") else None,
        start_limit_s=message.start_limit_s,
        stop_grace_s=message.stop_grace_s if message.HasField("stop_grace_s") else None,
        adapters=_decode_adapters(message.adapters),
        role=Role(message.role) if message.role else None,
    )


def _encode_adapters(adapters: Iterable[LoraAdapter]) -> list[pb.LoraAdapter]:
    return [pb.LoraAdapter(name=item.name, weights=text(item.weights)) for item in adapters]


def _decode_adapters(messages: Iterable[pb.LoraAdapter]) -> tuple[LoraAdapter, ...]:
    return tuple(LoraAdapter(name=ModelName(item.name), weights=item.weights) for item in messages)


def encode_start(command: StartShard) -> pb.StartShard:
    return pb.StartShard(epoch=command.epoch, spec=encode_spec(command.spec))


def decode_start(message: pb.StartShard) -> StartShard:
    return StartShard(epoch=Epoch(message.epoch), spec=decode_spec(message.spec))


def encode_drain(command: DrainShard) -> pb.DrainShard:
    return pb.DrainShard(epoch=command.epoch, shard=command.shard, replica=command.replica)


def decode_drain(message: pb.DrainShard) -> DrainShard:
    return DrainShard(
        epoch=Epoch(message.epoch),
        shard=ShardId(message.shard),
        replica=ReplicaId(message.replica),
    )


def encode_stop(command: StopShard) -> pb.StopShard:
    return pb.StopShard(
        epoch=command.epoch,
        shard=command.shard,
        replica=command.replica,
        grace_s=command.grace_s,
    )


def decode_stop(message: pb.StopShard) -> StopShard:
    return StopShard(
        epoch=Epoch(message.epoch),
        shard=ShardId(message.shard),
        replica=ReplicaId(message.replica),
        grace_s=message.grace_s if message.HasField("grace_s") else None,
    )


def encode_sleep(command: SleepShard) -> pb.SleepShard:
    return pb.SleepShard(
        epoch=command.epoch, shard=command.shard, replica=command.replica, level=command.level
    )


def decode_sleep(message: pb.SleepShard) -> SleepShard:
    return SleepShard(
        epoch=Epoch(message.epoch),
        shard=ShardId(message.shard),
        replica=ReplicaId(message.replica),
        level=message.level,
    )


def encode_wake(command: WakeShard) -> pb.WakeShard:
    return pb.WakeShard(epoch=command.epoch, shard=command.shard, replica=command.replica)


def decode_wake(message: pb.WakeShard) -> WakeShard:
    return WakeShard(
        epoch=Epoch(message.epoch),
        shard=ShardId(message.shard),
        replica=ReplicaId(message.replica),
    )


def encode_adapt(command: AdaptShard) -> pb.AdaptShard:
    return pb.AdaptShard(
        epoch=command.epoch,
        shard=command.shard,
        replica=command.replica,
        adapters=_encode_adapters(command.adapters),
    )


def decode_adapt(message: pb.AdaptShard) -> AdaptShard:
    return AdaptShard(
        epoch=Epoch(message.epoch),
        shard=ShardId(message.shard),
        replica=ReplicaId(message.replica),
        adapters=_decode_adapters(message.adapters),
    )
