"""What comes up: shards and their failures, registrations, heartbeats, rejections."""

from __future__ import annotations

from llmgw.domain.ids import DeviceId, Epoch, ModelName, NodeId, ReplicaId, SessionId, ShardId
from llmgw.domain.loads import MemoryReport
from llmgw.domain.replicas import Failure, FailureCause, Progress, Shard, ShardState
from llmgw.domain.reports import AdapterReport, Heartbeat, Registration, Rejection, ShardReport
from llmgw.domain.secret import Secret
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.codec.commands import decode_spec, encode_spec
from llmgw_agent.wire.codec.nodes import (
    decode_device,
    decode_inventory,
    decode_load,
    encode_device,
    encode_inventory,
    encode_load,
)
from llmgw_agent.wire.codec.scalars import (
    enum_value,
    options_text,
    options_value,
    raw,
    shown,
    text,
)

_STATE = "SHARD_STATE_"
_CAUSE = "FAILURE_CAUSE_"


def _encode_failure(failure: Failure) -> pb.Failure:
    return pb.Failure(
        cause=_CAUSE + failure.cause.name,
        message=text(failure.message),
        hint=text(failure.hint),
        exit_code=failure.exit_code,
        log_tail=[raw(line) for line in failure.log_tail],
        command=[text(argument) for argument in failure.command],
        retry_options_json=(
            None if failure.retry_options is None else options_text(failure.retry_options)
        ),
    )


def _decode_failure(message: pb.Failure) -> Failure:
    return Failure(
        cause=enum_value(pb.FailureCause, _CAUSE, message.cause, FailureCause),
        message=message.message,
        hint=message.hint,
        exit_code=message.exit_code if message.HasField("exit_code") else None,
        log_tail=tuple(shown(line) for line in message.log_tail),
        command=tuple(message.command),
        retry_options=(
            options_value(message.retry_options_json)
            if message.HasField("retry_options_json")
            else None
        ),
    )


def encode_progress(progress: Progress) -> pb.Progress:
    return pb.Progress(
        what=text(progress.what), done=progress.done, total=progress.total, unit=progress.unit
    )


def decode_progress(message: pb.Progress) -> Progress:
    return Progress(
        what=message.what,
        done=message.done,
        total=message.total if message.HasField("total") else None,
        unit=message.unit,
    )


def _encode_shard(shard: Shard) -> pb.Shard:
    return pb.Shard(
        id=shard.id,
        replica=shard.replica,
        node=shard.node,
        rank=shard.rank,
        state=_STATE + shard.state.name,
        devices=[text(device) for device in shard.devices],
        ports=shard.ports,
        pid=shard.pid,
        started_at=shard.started_at,
        incarnation=shard.incarnation,
        restarts=shard.restarts,
        failure=None if shard.failure is None else _encode_failure(shard.failure),
        progress=None if shard.progress is None else encode_progress(shard.progress),
        retry_in_s=shard.retry_in_s,
    )


def _decode_shard(message: pb.Shard) -> Shard:
    return Shard(
        id=ShardId(message.id),
        replica=ReplicaId(message.replica),
        node=NodeId(message.node),
        rank=message.rank,
        state=enum_value(pb.ShardState, _STATE, message.state, ShardState),
        devices=tuple(DeviceId(device) for device in message.devices),
        ports=tuple(message.ports),
        pid=message.pid if message.HasField("pid") else None,
        started_at=message.started_at if message.HasField("started_at") else None,
        incarnation=message.incarnation,
        restarts=message.restarts,
        failure=_decode_failure(message.failure) if message.HasField("failure") else None,
        progress=decode_progress(message.progress) if message.HasField("progress") else None,
        retry_in_s=message.retry_in_s if message.HasField("retry_in_s") else None,
    )


def _encode_memory(report: MemoryReport) -> pb.MemoryReport:
    return pb.MemoryReport(
        weights_mib=report.weights_mib,
        kv_cache_mib=report.kv_cache_mib,
        activation_mib=report.activation_mib,
        graphs_mib=report.graphs_mib,
        kv_cache_tokens=report.kv_cache_tokens,
        main_memory_mib=report.main_memory_mib,
    )


def _decode_memory(message: pb.MemoryReport) -> MemoryReport:
    return MemoryReport(
        weights_mib=message.weights_mib if message.HasField("weights_mib") else None,
        kv_cache_mib=message.kv_cache_mib if message.HasField("kv_cache_mib") else None,
        activation_mib=message.activation_mib if message.HasField("activation_mib") else None,
        graphs_mib=message.graphs_mib if message.HasField("graphs_mib") else None,
        kv_cache_tokens=message.kv_cache_tokens if message.HasField("kv_cache_tokens") else None,
        main_memory_mib=message.main_memory_mib if message.HasField("main_memory_mib") else None,
    )


def encode_shard_report(report: ShardReport) -> pb.ShardReport:
    return pb.ShardReport(
        shard=_encode_shard(report.shard),
        spec=encode_spec(report.spec),
        epoch=report.epoch,
        url=report.url,
        credential=None if report.credential is None else report.credential.reveal(),
        memory=None if report.memory is None else _encode_memory(report.memory),
        adapters=[
            pb.AdapterReport(name=item.name, problem=text(item.problem)) for item in report.adapters
        ],
    )


def decode_shard_report(message: pb.ShardReport) -> ShardReport:
    return ShardReport(
        shard=_decode_shard(message.shard),
        spec=decode_spec(message.spec),
        epoch=Epoch(message.epoch),
        url=message.url if message.HasField("url") else None,
        credential=Secret(message.credential) if message.HasField("credential") else None,
        memory=_decode_memory(message.memory) if message.HasField("memory") else None,
        adapters=tuple(
            AdapterReport(name=ModelName(item.name), problem=item.problem)
            for item in message.adapters
        ),
    )


def encode_registration(registration: Registration) -> pb.Hello:
    return pb.Hello(
        session=registration.session,
        inventory=encode_inventory(registration.inventory),
        epoch=registration.epoch,
        cluster_id=registration.cluster_id,
        shards=[encode_shard_report(report) for report in registration.shards],
    )


def decode_registration(message: pb.Hello) -> Registration:
    return Registration(
        session=SessionId(message.session),
        inventory=decode_inventory(message.inventory),
        epoch=Epoch(message.epoch),
        cluster_id=message.cluster_id if message.HasField("cluster_id") else None,
        shards=tuple(decode_shard_report(report) for report in message.shards),
    )


def encode_heartbeat(beat: Heartbeat) -> pb.Heartbeat:
    return pb.Heartbeat(
        session=beat.session,
        sequence=beat.sequence,
        devices=[encode_device(device) for device in beat.devices],
        loads=[pb.ShardLoad(shard=shard, load=encode_load(load)) for shard, load in beat.loads],
        ram_available_mib=beat.ram_available_mib,
        disk_free_mib=beat.disk_free_mib,
        loop_lag_ms=beat.loop_lag_ms,
    )


def decode_heartbeat(message: pb.Heartbeat) -> Heartbeat:
    return Heartbeat(
        session=SessionId(message.session),
        sequence=message.sequence,
        devices=tuple(decode_device(device) for device in message.devices),
        loads=tuple((ShardId(item.shard), decode_load(item.load)) for item in message.loads),
        ram_available_mib=(
            message.ram_available_mib if message.HasField("ram_available_mib") else None
        ),
        disk_free_mib=message.disk_free_mib if message.HasField("disk_free_mib") else None,
        loop_lag_ms=message.loop_lag_ms,
    )


def encode_rejection(rejection: Rejection) -> pb.Rejection:
    return pb.Rejection(
        node=rejection.node,
        shard=rejection.shard,
        code=rejection.code,
        message=text(rejection.message),
    )


def decode_rejection(message: pb.Rejection) -> Rejection:
    return Rejection(
        node=NodeId(message.node),
        shard=ShardId(message.shard),
        code=message.code,
        message=message.message,
    )
