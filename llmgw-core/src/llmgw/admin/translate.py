"""Values of the fleet as replies. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from llmgw.adminapi.explain import ActionReply, RefusalReply
from llmgw.adminapi.fleet import (
    CachedWeightsReply,
    DeviceReply,
    EndpointReply,
    EngineReply,
    NodeDetailReply,
    NodeReply,
    ReplicaReply,
    ShardReply,
)
from llmgw.control.view import NodeView
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import DeviceId, EndpointId, ReplicaId
from llmgw.domain.nodes import Device
from llmgw.domain.plans import (
    Action,
    AdaptReplica,
    DrainReplica,
    Refusal,
    SleepReplica,
    StartReplica,
    StopReplica,
    WakeReplica,
)
from llmgw.domain.replicas import Progress, Replica, Shard
from llmgw.router.selection import EndpointState

_GIB = 1024**3


def refusal_reply(refusal: Refusal) -> RefusalReply:
    return RefusalReply(
        code=refusal.code,
        sentence=refusal.sentence,
        model=refusal.model,
        profile=refusal.profile,
        node=refusal.node,
        need=refusal.need,
        have=refusal.have,
        hint=refusal.hint,
        parts=tuple(refusal_reply(part) for part in refusal.parts),
    )


_WORDS: dict[type, str] = {
    DrainReplica: "drain",
    SleepReplica: "sleep",
    StopReplica: "stop",
    WakeReplica: "wake",
    AdaptReplica: "adapt",
}


def action_reply(action: Action) -> ActionReply:
    if isinstance(action, StartReplica):
        return ActionReply(
            action="start",
            replica=action.replica,
            model=action.model,
            profile=action.profile,
            nodes=tuple(node for node, _ in action.shards),
            devices=sum(len(spec.devices) for _, spec in action.shards),
            because=action.because,
        )
    return ActionReply(action=_WORDS[type(action)], replica=action.replica, because=action.because)


def node_reply(node: NodeView, wall: float, now: float) -> NodeReply:
    return NodeReply.model_validate(_node_fields(node, wall, now))


def node_detail(node: NodeView, wall: float, now: float) -> NodeDetailReply:
    fields = _node_fields(node, wall, now)
    inventory = node.record.inventory
    if inventory is not None:
        holders = _holders(node.replicas)
        fields |= {
            "labels": dict(inventory.labels),
            "fabric": dict(inventory.fabric),
            "cpu_count": inventory.cpu_count,
            "ram_mib": inventory.ram_mib,
            "ram_available_mib": inventory.ram_available_mib,
            "disk_free_mib": inventory.disk_free_mib,
            "device_list": tuple(_device(device, holders) for device in inventory.devices),
            "engines": tuple(
                EngineReply(engine=item.engine, version=item.version, path=item.path)
                for item in inventory.engines
            ),
            "weights": tuple(
                CachedWeightsReply(ref=item.ref, size_bytes=item.size_bytes)
                for item in inventory.weights
            ),
        }
    fields["replica_list"] = tuple(
        replica_reply(replica, wall, now, {}) for replica in node.replicas
    )
    return NodeDetailReply.model_validate(fields)


def replica_reply(
    replica: Replica, wall: float, now: float, in_flight: Mapping[ReplicaId, int]
) -> ReplicaReply:
    return ReplicaReply(
        id=replica.id,
        model=replica.model,
        profile=replica.profile,
        state=replica.state.value,
        reason=replica.reason,
        since_at=wall - (now - replica.since),
        nodes=tuple(dict.fromkeys(shard.node for shard in replica.shards)),
        devices=sum(len(shard.devices) for shard in replica.shards),
        restarts=sum(shard.restarts for shard in replica.shards),
        in_flight=in_flight.get(replica.id),
        shards=tuple(_shard(shard) for shard in replica.shards),
    )


def endpoint_reply(endpoint: Endpoint, state: EndpointState | None) -> EndpointReply:
    return EndpointReply(
        id=endpoint.id,
        url=endpoint.url,
        models=endpoint.models,
        engine=endpoint.engine,
        pool=endpoint.pool,
        priority=endpoint.priority,
        weight=endpoint.weight,
        node=endpoint.node,
        replica=endpoint.replica,
        draining=endpoint.draining,
        state=None if state is None else state.condition.value,
        in_flight=None if state is None else state.in_flight,
        max_inflight=endpoint.max_inflight,
        role=None if endpoint.role is None else endpoint.role.value,
    )


def by_endpoint(states: Iterable[EndpointState]) -> dict[EndpointId, EndpointState]:
    return {state.endpoint.id: state for state in states}


def in_flight_by_replica(states: Iterable[EndpointState]) -> dict[ReplicaId, int]:
    return {
        state.endpoint.replica: state.in_flight
        for state in states
        if state.endpoint.replica is not None
    }


def count_by_state(states: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(states).items()))


def progress_text(progress: Progress | None) -> str:
    """Return e.g. `downloading weights 1.2 of 4.0 GiB`."""
    if progress is None:
        return ""
    done, total, unit = progress.done, progress.total, progress.unit
    if unit == "bytes":
        done, total, unit = done / _GIB, total / _GIB if total else None, "GiB"
    figures = f"{done:.1f}" if total is None else f"{done:.1f} of {total:.1f}"
    return f"{progress.what} {figures} {unit}"


def _node_fields(node: NodeView, wall: float, now: float) -> dict[str, object]:
    record, inventory = node.record, node.record.inventory
    return {
        "id": record.id,
        "state": record.state.value,
        "since_at": wall - (now - record.since),
        "last_seen_at": wall - node.silent_s,
        "connected": record.session is not None,
        "cordoned": record.cordoned,
        "draining": record.draining,
        "because": record.because,
        "hostname": inventory.hostname if inventory else "",
        "address": inventory.data_address if inventory else None,
        "pool": inventory.pool if inventory else "default",
        "version": inventory.agent_version if inventory else None,
        "devices": len(inventory.devices) if inventory else 0,
        "devices_free": node.free_devices,
        "replicas": len(node.replicas),
    }


def _holders(replicas: Iterable[Replica]) -> dict[DeviceId, list[str]]:
    holders: dict[DeviceId, list[str]] = {}
    for replica in replicas:
        for shard in replica.shards:
            if shard.state.holds_devices:
                for device in shard.devices:
                    holders.setdefault(device, []).append(shard.id)
    return holders


def _device(device: Device, holders: Mapping[DeviceId, list[str]]) -> DeviceReply:
    return DeviceReply(
        id=device.id,
        index=device.index,
        kind=device.kind,
        vendor=device.vendor,
        memory_mib=device.memory_mib,
        memory_used_mib=device.memory_used_mib,
        utilisation=device.utilisation,
        health=device.health.value,
        health_reason=device.health_reason,
        labels=device.labels,
        pci_address=device.pci_address,
        island=device.island,
        parent=device.parent,
        used_by=tuple(holders.get(device.id, ())),
        foreign_processes=sum(not process.ours for process in device.processes),
    )


def _shard(shard: Shard) -> ShardReply:
    failure = shard.failure
    return ShardReply(
        id=shard.id,
        node=shard.node,
        rank=shard.rank,
        state=shard.state.value,
        devices=shard.devices,
        ports=shard.ports,
        pid=shard.pid,
        started_at=shard.started_at,
        restarts=shard.restarts,
        cause=failure.cause.value if failure else None,
        message=failure.message if failure else "",
        hint=failure.hint if failure else "",
        log_tail=failure.log_tail if failure else (),
        command=failure.command if failure else (),
        progress=progress_text(shard.progress),
        progress_done=shard.progress.done if shard.progress else None,
        progress_total=shard.progress.total if shard.progress else None,
        retry_in_s=shard.retry_in_s,
    )
