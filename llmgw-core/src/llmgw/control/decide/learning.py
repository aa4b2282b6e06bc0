"""What replicas really take: by what their devices show while they run, or else by their own word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llmgw.control.decide.fit import LEARNED_MARGIN, MAIN_MEMORY, learned_key
from llmgw.control.decide.snapshot import ClusterSnapshot, ReplicaRecord
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import ModelName, NodeId, ProfileName
from llmgw.domain.nodes import Device
from llmgw.domain.replicas import ReplicaState

#: Warm-up, captured graphs and the first requests are over by then.
READY_FOR_S = 120.0
#: MiB of a device that no engine counts as its own: the driver's context, libraries, buffers.
UNSAID_MIB = 1024.0


def measured_memory(snapshot: ClusterSnapshot) -> Mapping[str, float]:
    """Return MiB per device by `fit.learned_key`, of replicas that run.

    A device has one owner, so what is used on it is the replica's. Until it has run for a while,
    and where a device shows nothing, what the engine said while it started counts; of engines
    without a device it is main memory. Of several replicas and devices the highest use counts.
    """
    shown: dict[str, float] = {}
    said: dict[str, float] = {}
    keys: dict[tuple[ModelName, ProfileName, str], str] = {}  # a hash each, of few different things
    for record in snapshot.replicas:
        ready = record.replica.first_ready
        if record.replica.state is not ReplicaState.READY or ready is None:
            continue
        model = snapshot.model(record.replica.model)
        profile = snapshot.profile_of(model, record) if model else None
        if profile is None:
            continue
        settled = snapshot.now - ready >= READY_FOR_S
        for spec, device in _places(snapshot, record):
            kind = device.kind if device else MAIN_MEMORY
            what = (record.replica.model, profile.name, kind)
            if (key := keys.get(what)) is None:
                key = keys[what] = learned_key(profile, kind)
            word = _word(record, spec)
            if device is not None and device.memory_used_mib and settled:
                found, mib = shown, float(device.memory_used_mib)
            elif word is not None:
                found, mib = said, word + (UNSAID_MIB if device else 0.0)
            else:
                continue
            if device is not None and device.memory_mib is not None:
                # It runs there: whatever fills a device must not be found too large for its like.
                mib = min(mib, device.memory_mib / LEARNED_MARGIN)
            found[key] = max(found.get(key, 0.0), mib)
    return {**said, **shown}


def _places(
    snapshot: ClusterSnapshot, record: ReplicaRecord
) -> Iterator[tuple[ShardSpec, Device | None]]:
    """Yield each shard with each of its devices, or with None where it has none."""
    for node, spec in record.shards:
        if not spec.devices:
            yield spec, None
            continue
        for device in _devices(snapshot, node):
            if device.id in spec.devices:
                yield spec, device


def _devices(snapshot: ClusterSnapshot, node: NodeId) -> tuple[Device, ...]:
    known = snapshot.nodes.get(node)
    return known.inventory.devices if known and known.inventory else ()


def _word(record: ReplicaRecord, spec: ShardSpec) -> float | None:
    report = record.reports.get(spec.id)
    memory = report.memory if report else None
    if memory is None:
        return None
    return memory.total_mib if spec.devices else memory.main_memory_mib or memory.total_mib
