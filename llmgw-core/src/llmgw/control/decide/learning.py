"""What replicas really take, from what their devices show while they run."""

from __future__ import annotations

from collections.abc import Mapping

from llmgw.control.decide.fit import learned_key
from llmgw.control.decide.snapshot import ClusterSnapshot
from llmgw.domain.ids import ModelName, ProfileName
from llmgw.domain.replicas import ReplicaState

#: Warm-up, captured graphs and the first requests are over by then.
READY_FOR_S = 120.0


def measured_memory(snapshot: ClusterSnapshot) -> Mapping[str, float]:
    """Return MiB per device by `fit.learned_key`, of replicas that have run for a while.

    A device has one owner, so what is used on it is the replica's. Of several replicas and
    devices the highest use counts.
    """
    found: dict[str, float] = {}
    keys: dict[tuple[ModelName, ProfileName, str], str] = {}  # a hash each, of few different things
    for record in snapshot.replicas:
        ready = record.replica.first_ready
        if record.replica.state is not ReplicaState.READY or ready is None:
            continue
        model = snapshot.model(record.replica.model)
        profile = snapshot.profile_of(model, record) if model else None
        if profile is None or not record.spec.devices or snapshot.now - ready < READY_FOR_S:
            continue
        for node, spec in record.shards:
            known = snapshot.nodes.get(node)
            if known is None or known.inventory is None:
                continue
            for device in known.inventory.devices:
                if device.id in spec.devices and device.memory_used_mib:
                    what = (record.replica.model, profile.name, device.kind)
                    if (key := keys.get(what)) is None:
                        key = keys[what] = learned_key(profile, device.kind)
                    found[key] = max(found.get(key, 0.0), float(device.memory_used_mib))
    return found
