"""What is learnt of memory: from devices where they show it, else from the engines' own words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from llmgw.control.decide.fit import LEARNED_MARGIN, MAIN_MEMORY, learned_key
from llmgw.control.decide.learning import READY_FOR_S, UNSAID_MIB, measured_memory
from llmgw.control.decide.need import need_of
from llmgw.control.decide.snapshot import ClusterSnapshot, ReplicaRecord
from llmgw.domain.catalog import Model, Profile, spec_hash
from llmgw.domain.ids import Epoch, NodeId
from llmgw.domain.loads import MemoryReport
from llmgw.domain.replicas import Replica, ReplicaState
from llmgw.testing import values

MakeSnapshot = Callable[..., ClusterSnapshot]
SAID = MemoryReport(weights_mib=20000.0, kv_cache_mib=30000.0, activation_mib=1000.0)


def running(
    make: MakeSnapshot,
    model: Model,
    memory: MemoryReport | None,
    *,
    ready_for_s: float,
    **device: Any,
) -> ClusterSnapshot:
    """One replica on one node, and what it and its device say."""
    profile = model.profiles[0]
    count = profile.devices.count
    devices = tuple(values.device("n1", index, **device) for index in range(count))
    node = values.inventory("n1", devices=devices)
    spec = values.shard(
        "r1.0", model=model.name, devices=tuple(item.id for item in devices), profile=profile.name
    )
    hashed = spec_hash(model, profile)
    replica = Replica(
        id=spec.replica,
        model=model.name,
        profile=profile.name,
        spec_hash=hashed,
        epoch=Epoch(1),
        state=ReplicaState.READY,
        first_ready=1000.0 - ready_for_s,
    )
    report = replace(values.report("n1", spec), memory=memory)
    record = ReplicaRecord(
        replica=replica, shards=((NodeId("n1"), spec),), reports={spec.id: report}
    )
    return replace(make([model], [node]), replicas=(record,), now=1000.0)


def gpu() -> Model:
    return values.model("m", values.profile(devices=1))


def kind_of(snapshot: ClusterSnapshot) -> str:
    (node,) = snapshot.nodes.values()
    assert node.inventory is not None
    return node.inventory.devices[0].kind


def test_a_device_that_shows_its_use_is_believed_once_it_has_served_for_a_while(
    snapshot: MakeSnapshot,
) -> None:
    shown = {"memory_used_mib": 61000}
    early = running(snapshot, gpu(), SAID, ready_for_s=1.0, **shown)
    key = learned_key(gpu().profiles[0], kind_of(early))
    assert measured_memory(early) == {key: 51000.0 + UNSAID_MIB}
    late = running(snapshot, gpu(), SAID, ready_for_s=READY_FOR_S, **shown)
    assert measured_memory(late) == {key: 61000.0}


def test_what_fills_its_device_is_not_found_too_large_for_another_one(
    snapshot: MakeSnapshot,
) -> None:
    full = {"memory_mib": 81920, "memory_used_mib": 81000}
    fleet = running(snapshot, gpu(), None, ready_for_s=READY_FOR_S, **full)
    (mib,) = measured_memory(fleet).values()
    assert mib * LEARNED_MARGIN == pytest.approx(81920)


def test_a_device_that_shows_nothing_leaves_it_to_the_engine(snapshot: MakeSnapshot) -> None:
    silent = running(snapshot, gpu(), SAID, ready_for_s=READY_FOR_S, memory_used_mib=None)
    assert list(measured_memory(silent).values()) == [51000.0 + UNSAID_MIB]
    nothing = running(snapshot, gpu(), None, ready_for_s=READY_FOR_S, memory_used_mib=None)
    assert measured_memory(nothing) == {}
    half = MemoryReport(weights_mib=20000.0)
    partly = running(snapshot, gpu(), half, ready_for_s=READY_FOR_S, memory_used_mib=None)
    assert measured_memory(partly) == {}, "weights without a cache are no estimate"


def test_an_engine_without_a_device_is_counted_with_the_main_memory_that_it_took(
    snapshot: MakeSnapshot,
) -> None:
    model = values.model("m", values.profile(devices=0))
    profile = model.profiles[0]
    fleet = running(snapshot, model, MemoryReport(main_memory_mib=800.0), ready_for_s=1.0)
    learned = measured_memory(fleet)
    assert learned == {learned_key(profile, MAIN_MEMORY): 800.0}
    assert need_of(fleet, model, profile).ram_mib is None, "not before it has run"
    later = replace(fleet, learned=learned)
    assert need_of(later, model, profile).ram_mib == 840.0
    written = Profile.model_validate({**profile.model_dump(), "ram_gib": 2})
    assert (
        need_of(replace(later, hashes={model.name: {profile.name: "x"}}), model, written).ram_mib
        == 2048.0
    )
