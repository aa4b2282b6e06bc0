"""What an older release sends means the same today.

`recorded/vX.Y/` holds frames as that release wrote them; they are never written again. Run this
file as a program to record those of a new release: `python test_recorded_frames.py vX.Y`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llmgw.contracts.dispatch import LogSource, WeightsEntry
from llmgw.domain.commands import (
    DrainShard,
    Peer,
    ShardSpec,
    SleepShard,
    StartShard,
    StopShard,
    WakeShard,
)
from llmgw.domain.ids import (
    DeviceId,
    Epoch,
    ModelName,
    NodeId,
    ProfileName,
    ReplicaId,
    SessionId,
    ShardId,
)
from llmgw.domain.loads import EngineLoad
from llmgw.domain.nodes import (
    CachedWeights,
    Device,
    DeviceHealth,
    DeviceProcess,
    InstalledEngine,
    NodeInventory,
)
from llmgw.domain.replicas import Failure, FailureCause, Progress, Shard, ShardState
from llmgw.domain.reports import Heartbeat, Registration, Rejection, ShardReport
from llmgw.domain.secret import Secret
from llmgw_agent.wire.codec import (
    DownDecoder,
    UpDecoder,
    decode_bulk,
    encode_bulk,
    encode_down,
    encode_up,
)
from llmgw_agent.wire.frames import (
    BulkDone,
    BulkFrame,
    BulkOpening,
    BulkProblem,
    BulkRequest,
    BulkWorking,
    DownFrame,
    Goodbye,
    HeartbeatReply,
    InstallEngine,
    ListLogs,
    ListWeights,
    LogLines,
    LogSources,
    PullWeights,
    ReadLog,
    RemoveEngine,
    RemoveWeights,
    Unsupported,
    UpFrame,
    WeightsList,
    Welcome,
)

RECORDED = Path(__file__).parent / "recorded"

SPEC = ShardSpec(
    id=ShardId("llama-3-1-2.0"),
    replica=ReplicaId("llama-3-1-2"),
    model=ModelName("llama-3"),
    served_names=(ModelName("llama-3"), ModelName("default")),
    profile=ProfileName("h100"),
    spec_hash="0123456789abcdef",
    engine="vllm",
    engine_version="0.33.0",
    weights="hf:meta/llama@main",
    options={"max_model_len": 32768, "nested": {"list": [1, 2.5, None, True]}},
    devices=(DeviceId("GPU-1"), DeviceId("GPU-2")),
    rank=1,
    ports=(20000, 20001),
    tensor=2,
    pipeline=3,
    data=4,
    peers=(
        Peer(rank=0, node=NodeId("gpu-01"), address="fd00::5", ports=(20000, 20001), devices=2),
    ),
    memory_mib=40960,
    command=("/opt/vllm/bin/vllm", "serve"),
    env={"NCCL_DEBUG": "INFO"},
    pool="chat",
    priority=-3,
    weight=0.5,
    max_inflight=64,
    start_limit_s=600.0,
    stop_grace_s=45.0,
)
DEVICE = Device(
    id=DeviceId("GPU-1"),
    index=1,
    kind="NVIDIA H100 80GB HBM3",
    vendor="nvidia",
    memory_mib=81559,
    memory_used_mib=1024,
    memory_shared=True,
    utilisation=0.25,
    health=DeviceHealth.FAILED,
    health_reason="Xid 79",
    pci_address="0000:65:00.0",
    parent=DeviceId("GPU-0"),
    island="nvl-0",
    labels={"kind": "H100"},
    processes=(DeviceProcess(pid=4711, memory_mib=512, ours=True),),
)
REPORT = ShardReport(
    shard=Shard(
        id=SPEC.id,
        replica=SPEC.replica,
        node=NodeId("gpu-01"),
        rank=1,
        state=ShardState.BACKOFF,
        devices=SPEC.devices,
        ports=SPEC.ports,
        pid=4711,
        started_at=1_800_000_000.5,
        incarnation=3,
        restarts=2,
        failure=Failure(
            cause=FailureCause.OUT_OF_DEVICE_MEMORY,
            message="CUDA out of memory",
            hint="lower gpu_memory_utilization",
            exit_code=-9,
            log_tail=("line one", "line two é"),
            command=("vllm", "serve", "***"),
            retry_options={"repack": False},
        ),
        progress=Progress(what="downloading weights", done=1.5, total=3.0, unit="bytes"),
        retry_in_s=12.5,
    ),
    spec=SPEC,
    epoch=Epoch((7 << 32) | 5),
    url="http://10.0.0.5:20000",
    credential=Secret("key-of-the-engine"),
)
INVENTORY = NodeInventory(
    node=NodeId("gpu-01"),
    agent_uid="a-uid",
    boot_id="a-boot",
    machine_id="a-machine",
    agent_version="0.1.0",
    hostname="gpu-01.example",
    data_address="10.0.0.5",
    pool="chat",
    labels={"rack": "r1"},
    fabric={"ib": "rail-1"},
    cpu_count=64,
    ram_mib=512000,
    ram_available_mib=500000,
    disk_free_mib=1000000,
    port_range=(21000, 21999),
    devices=(DEVICE,),
    engines=(InstalledEngine(engine="vllm", version="0.33.0", path="/opt/vllm"),),
    weights=(CachedWeights(ref=SPEC.weights, size_bytes=16_000_000_000),),
    capabilities=frozenset({"start", "stop", "drain", "logs"}),
)
LOAD = EngineLoad(
    running=1,
    waiting=2,
    kv_used=0.5,
    prompt_tokens=10.0,
    generated_tokens=20.0,
    cached_tokens=5.0,
)
UP: dict[str, UpFrame] = {
    "registration": Registration(
        session=SessionId("a-boot/1"),
        inventory=INVENTORY,
        epoch=REPORT.epoch,
        cluster_id="a-cluster",
        shards=(REPORT,),
    ),
    "heartbeat": Heartbeat(
        session=SessionId("a-boot/1"),
        sequence=42,
        devices=(DEVICE,),
        loads=((SPEC.id, LOAD),),
        ram_available_mib=1,
        disk_free_mib=2,
        loop_lag_ms=0.75,
    ),
    "shard": REPORT,
    "rejection": Rejection(
        node=NodeId("gpu-01"), shard=SPEC.id, code="device_busy", message="GPU-1 is taken"
    ),
    "unsupported_up": Unsupported(what="a frame of the server's"),
}
DOWN: dict[str, DownFrame] = {
    "welcome": Welcome(
        heartbeat_interval_s=5.0,
        cluster_id="a-cluster",
        server_version="0.1.0",
        capabilities=frozenset({"logs"}),
        authorities="0123456789abcdef",
    ),
    "goodbye": Goodbye(code="node_id_taken", message="another agent has it"),
    "heartbeat_reply": HeartbeatReply(sequence=42, authorities="0123456789abcdef"),
    "start": StartShard(epoch=REPORT.epoch, spec=SPEC),
    "drain": DrainShard(epoch=REPORT.epoch, shard=SPEC.id, replica=SPEC.replica),
    "stop": StopShard(epoch=REPORT.epoch, shard=SPEC.id, replica=SPEC.replica, grace_s=30.0),
    "sleep": SleepShard(epoch=REPORT.epoch, shard=SPEC.id, replica=SPEC.replica, level=2),
    "wake": WakeShard(epoch=REPORT.epoch, shard=SPEC.id, replica=SPEC.replica),
    "ask_log_sources": BulkRequest(id="1", ask=ListLogs()),
    "ask_log": BulkRequest(id="2", ask=ReadLog(source="agent", lines=100, follow=True)),
    "ask_weights": BulkRequest(id="3", ask=ListWeights()),
    "ask_pull": BulkRequest(id="4", ask=PullWeights(ref=SPEC.weights)),
    "ask_remove": BulkRequest(id="5", ask=RemoveWeights(ref=SPEC.weights)),
    "ask_install": BulkRequest(id="6", ask=InstallEngine(engine="vllm", version="0.33.0")),
    "ask_uninstall": BulkRequest(id="7", ask=RemoveEngine(engine="vllm", version="0.33.0")),
    "unsupported_down": Unsupported(what="a frame of the agent's"),
}
BULK: dict[str, BulkFrame] = {
    "opening": BulkOpening(id="1"),
    "log_sources": LogSources(
        sources=(LogSource(name="agent", description="the agent itself", lines=2000),)
    ),
    "log_lines": LogLines(lines=(b"plain", b"\xff odd")),
    "weights": WeightsList(
        entries=(WeightsEntry(ref=SPEC.weights, size_bytes=5, state="ready", used_by=(SPEC.id,)),)
    ),
    "working": BulkWorking(),
    "done": BulkDone(),
    "problem": BulkProblem(message="no such log", transient=True),
}


@pytest.mark.parametrize("version", ["v0.1"])
@pytest.mark.parametrize("name", UP)
def test_a_recorded_frame_of_an_agent_is_read_as_it_was_meant(version: str, name: str) -> None:
    assert UpDecoder().feed(_recorded(version, name).read_bytes()) == UP[name]


@pytest.mark.parametrize("version", ["v0.1"])
@pytest.mark.parametrize("name", DOWN)
def test_a_recorded_frame_of_a_server_is_read_as_it_was_meant(version: str, name: str) -> None:
    assert DownDecoder().feed(_recorded(version, name).read_bytes()) == DOWN[name]


@pytest.mark.parametrize("version", ["v0.1"])
@pytest.mark.parametrize("name", BULK)
def test_a_recorded_bulk_frame_is_read_as_it_was_meant(version: str, name: str) -> None:
    assert decode_bulk(_recorded(version, name).read_bytes()) == BULK[name]


def _recorded(version: str, name: str) -> Path:
    return RECORDED / version / f"{name}.bin"


def _record(version: str) -> None:
    frames = {name: encode_up(frame)[0] for name, frame in UP.items()}
    frames |= {name: encode_down(frame)[0] for name, frame in DOWN.items()}
    frames |= {name: encode_bulk(frame) for name, frame in BULK.items()}
    for name, data in frames.items():
        with _recorded(version, name).open("xb") as file:
            file.write(data)


if __name__ == "__main__":
    _record(sys.argv[1])
