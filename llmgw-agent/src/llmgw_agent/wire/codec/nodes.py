"""Inventories, devices and loads."""

from __future__ import annotations

from llmgw.domain.ids import DeviceId, NodeId
from llmgw.domain.loads import EngineLoad
from llmgw.domain.nodes import (
    CachedWeights,
    Device,
    DeviceHealth,
    DeviceProcess,
    InstallableEngine,
    InstalledEngine,
    NodeInventory,
)
from llmgw.domain.weights import WeightFacts
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.codec.scalars import enum_value, text, texts

_HEALTH = "DEVICE_HEALTH_"


def encode_device(device: Device) -> pb.Device:
    return pb.Device(
        id=text(device.id),
        index=device.index,
        kind=text(device.kind),
        vendor=device.vendor,
        memory_mib=device.memory_mib,
        memory_used_mib=device.memory_used_mib,
        memory_shared=device.memory_shared,
        utilisation=device.utilisation,
        health=_HEALTH + device.health.name,
        health_reason=text(device.health_reason),
        pci_address=device.pci_address,
        parent=device.parent,
        island=device.island,
        labels=texts(device.labels),
        processes=[
            pb.DeviceProcess(pid=item.pid, memory_mib=item.memory_mib, ours=item.ours)
            for item in device.processes
        ],
    )


def decode_device(message: pb.Device) -> Device:
    return Device(
        id=DeviceId(message.id),
        index=message.index,
        kind=message.kind,
        vendor=message.vendor,
        memory_mib=message.memory_mib if message.HasField("memory_mib") else None,
        memory_used_mib=message.memory_used_mib if message.HasField("memory_used_mib") else None,
        memory_shared=message.memory_shared,
        utilisation=message.utilisation if message.HasField("utilisation") else None,
        health=enum_value(pb.DeviceHealth, _HEALTH, message.health, DeviceHealth),
        health_reason=message.health_reason,
        pci_address=message.pci_address if message.HasField("pci_address") else None,
        parent=DeviceId(message.parent) if message.HasField("parent") else None,
        island=message.island if message.HasField("island") else None,
        labels=dict(message.labels),
        processes=tuple(
            DeviceProcess(
                pid=item.pid,
                memory_mib=item.memory_mib if item.HasField("memory_mib") else None,
                ours=item.ours,
            )
            for item in message.processes
        ),
    )


def encode_inventory(inventory: NodeInventory) -> pb.NodeInventory:
    return pb.NodeInventory(
        node=inventory.node,
        agent_uid=inventory.agent_uid,
        boot_id=inventory.boot_id,
        machine_id=inventory.machine_id,
        agent_version=inventory.agent_version,
        hostname=text(inventory.hostname),
        data_address=inventory.data_address,
        pool=inventory.pool,
        labels=texts(inventory.labels),
        fabric=texts(inventory.fabric),
        cpu_count=inventory.cpu_count,
        ram_mib=inventory.ram_mib,
        ram_available_mib=inventory.ram_available_mib,
        disk_free_mib=inventory.disk_free_mib,
        port_range=pb.PortRange(first=inventory.port_range[0], last=inventory.port_range[1]),
        devices=[encode_device(device) for device in inventory.devices],
        engines=[
            pb.InstalledEngine(engine=item.engine, version=text(item.version), path=text(item.path))
            for item in inventory.engines
        ],
        weights=[
            pb.CachedWeights(
                ref=text(item.ref),
                size_bytes=item.size_bytes,
                facts=None if item.facts is None else _encode_facts(item.facts),
                manifest=item.manifest,
            )
            for item in inventory.weights
        ],
        capabilities=sorted(inventory.capabilities),
        leaving=inventory.leaving,
        weights_port=inventory.weights_port,
        installable=[
            pb.InstallableEngine(engine=text(item.engine), version=text(item.version))
            for item in inventory.installable
        ],
    )


def decode_inventory(message: pb.NodeInventory) -> NodeInventory:
    return NodeInventory(
        node=NodeId(message.node),
        agent_uid=message.agent_uid,
        boot_id=message.boot_id,
        machine_id=message.machine_id,
        agent_version=message.agent_version,
        hostname=message.hostname,
        data_address=message.data_address,
        pool=message.pool,
        labels=dict(message.labels),
        fabric=dict(message.fabric),
        cpu_count=message.cpu_count,
        ram_mib=message.ram_mib,
        ram_available_mib=(
            message.ram_available_mib if message.HasField("ram_available_mib") else None
        ),
        disk_free_mib=message.disk_free_mib if message.HasField("disk_free_mib") else None,
        port_range=(message.port_range.first, message.port_range.last),
        devices=tuple(decode_device(device) for device in message.devices),
        engines=tuple(
            InstalledEngine(engine=item.engine, version=item.version, path=item.path)
            for item in message.engines
        ),
        weights=tuple(
            CachedWeights(
                ref=item.ref,
                size_bytes=item.size_bytes,
                facts=_decode_facts(item.facts) if item.HasField("facts") else None,
                manifest=item.manifest if item.HasField("manifest") else None,
            )
            for item in message.weights
        ),
        capabilities=frozenset(message.capabilities),
        leaving=message.leaving,
        weights_port=message.weights_port if message.HasField("weights_port") else None,
        installable=tuple(
            InstallableEngine(engine=item.engine, version=item.version)
            for item in message.installable
        ),
    )


def encode_load(load: EngineLoad) -> pb.EngineLoad:
    return pb.EngineLoad(
        running=load.running,
        waiting=load.waiting,
        kv_used=load.kv_used,
        prompt_tokens=load.prompt_tokens,
        generated_tokens=load.generated_tokens,
        cached_tokens=load.cached_tokens,
    )


def decode_load(message: pb.EngineLoad) -> EngineLoad:
    return EngineLoad(
        running=message.running if message.HasField("running") else None,
        waiting=message.waiting if message.HasField("waiting") else None,
        kv_used=message.kv_used if message.HasField("kv_used") else None,
        prompt_tokens=message.prompt_tokens if message.HasField("prompt_tokens") else None,
        generated_tokens=message.generated_tokens if message.HasField("generated_tokens") else None,
        cached_tokens=message.cached_tokens if message.HasField("cached_tokens") else None,
    )


def _encode_facts(facts: WeightFacts) -> pb.WeightFacts:
    return pb.WeightFacts(
        weights_mib=facts.weights_mib,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        windowed_bytes_per_token=facts.windowed_bytes_per_token,
        sliding_window=facts.sliding_window,
        attention_heads=facts.attention_heads,
        max_context=facts.max_context,
        disk_mib=facts.disk_mib,
    )


def _decode_facts(message: pb.WeightFacts) -> WeightFacts:
    def whole(name: str) -> int | None:
        return int(getattr(message, name)) if message.HasField(name) else None

    def number(name: str) -> float | None:
        return float(getattr(message, name)) if message.HasField(name) else None

    return WeightFacts(
        weights_mib=number("weights_mib"),
        kv_bytes_per_token=number("kv_bytes_per_token"),
        windowed_bytes_per_token=message.windowed_bytes_per_token,
        sliding_window=whole("sliding_window"),
        attention_heads=whole("attention_heads"),
        max_context=whole("max_context"),
        disk_mib=number("disk_mib"),
    )
