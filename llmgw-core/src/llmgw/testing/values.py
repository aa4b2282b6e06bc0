"""Small, valid values to build cases from; every field can be overridden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmgw.domain.catalog import Model, Profile
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import (
    DeviceId,
    Epoch,
    ModelName,
    NodeId,
    ProfileName,
    ReplicaId,
    ShardId,
)
from llmgw.domain.nodes import Device, InstalledEngine, NodeInventory
from llmgw.domain.replicas import Shard, ShardState
from llmgw.domain.reports import ShardReport

ENGINE = "fake"  #: the engine kind that these nodes have and these profiles ask for


def device(node: str, index: int, **changes: Any) -> Device:
    """Return an accelerator of 80 GiB, with an id that no other node's has."""
    values: dict[str, Any] = {
        "id": DeviceId(f"{node}-gpu{index}"),
        "index": index,
        "kind": "NVIDIA H100 80GB HBM3",
        "vendor": "nvidia",
        "memory_mib": 81559,
        "memory_used_mib": 0,
        "island": "nv0",
    }
    return Device(**(values | changes))


def inventory(node: str, *, devices: int | tuple[Device, ...] = 0, **changes: Any) -> NodeInventory:
    """Return a node of 64 CPUs and 512 GiB that has the `fake` engine, and these devices."""
    if isinstance(devices, int):
        devices = tuple(device(node, index) for index in range(devices))
    values: dict[str, Any] = {
        "node": NodeId(node),
        "agent_uid": f"uid-{node}",
        "boot_id": f"boot-{node}",
        "machine_id": f"machine-{node}",
        "agent_version": "0.1.0",
        "hostname": node,
        "data_address": "127.0.0.1",
        "cpu_count": 64,
        "ram_mib": 512 * 1024,
        "devices": devices,
        "engines": (InstalledEngine(engine=ENGINE, version="1.0", path="/opt/fake"),),
    }
    return NodeInventory(**(values | changes))


def profile(
    name: str = "default", *, devices: int | Mapping[str, object] = 0, **changes: Any
) -> Profile:
    """Return a profile of the `fake` engine; a mere number of devices asks for 40 GiB on each."""
    if isinstance(devices, int):
        devices = {"count": devices, "memory_gib": 40} if devices else {"count": 0}
    values: dict[str, Any] = {
        "name": name,
        "engine": ENGINE,
        "weights": "path:/models/fake",
        "devices": devices,
    }
    return Profile(**(values | changes))


def model(
    name: str = "m", *profiles: Profile, replicas: Mapping[str, int] | None = None, **changes: Any
) -> Model:
    """Return a catalog entry; without profiles it gets one that runs on the CPU."""
    values: dict[str, Any] = {"name": name, "profiles": profiles or (profile(),)}
    if replicas is not None:
        values["replicas"] = replicas
    return Model(**(values | changes))


def shard(shard_id: str, **changes: Any) -> ShardSpec:
    """Return what a node is told of one shard of the model `m`."""
    values: dict[str, Any] = {
        "id": ShardId(shard_id),
        "replica": ReplicaId(shard_id.rpartition(".")[0]),
        "model": ModelName("m"),
        "served_names": (ModelName("m"),),
        "profile": ProfileName("default"),
        "spec_hash": "0" * 16,
        "engine": ENGINE,
        "engine_version": None,
        "weights": "path:/models/fake",
        "options": {},
        "devices": (),
        "rank": int(shard_id.rpartition(".")[2]),
        "ports": (20000,),
    }
    return ShardSpec(**(values | changes))


def report(node: str, spec: ShardSpec, state: ShardState = ShardState.READY) -> ShardReport:
    """Return what a node says of a shard in this state."""
    return ShardReport(
        shard=Shard(
            id=spec.id,
            replica=spec.replica,
            node=NodeId(node),
            rank=spec.rank,
            state=state,
            devices=spec.devices,
            ports=spec.ports,
            incarnation=1,
        ),
        spec=spec,
        epoch=Epoch(1),
        url=f"http://127.0.0.1:{spec.ports[0]}" if spec.rank == 0 else None,
    )
