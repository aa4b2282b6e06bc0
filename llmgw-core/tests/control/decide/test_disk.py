"""Weights fit on the disk of the node that they go to, whatever else goes there in the same plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.control.decide.memory import Memory
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.decide.reconcile import reconcile
from llmgw.control.decide.snapshot import ClusterSnapshot, ReplicaRecord
from llmgw.domain.catalog import Model
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import Epoch, ModelName, NodeId
from llmgw.domain.nodes import CachedWeights, NodeInventory
from llmgw.domain.plans import Refusal, StartReplica
from llmgw.domain.replicas import Progress, Replica, ReplicaState, ShardState
from llmgw.domain.weights import WeightFacts
from llmgw.testing import values

MakeSnapshot = Callable[..., ClusterSnapshot]

GIB = 1 << 30
REFS = tuple(f"hf:acme/w{index}@1" for index in range(5))


def facts_of(**sizes_gib: float) -> dict[str, WeightFacts]:
    return {
        f"hf:acme/{name}@1": WeightFacts(disk_mib=size * 1024) for name, size in sizes_gib.items()
    }


def entry(name: str, ref: str, **changes: Any) -> Model:
    return values.model(name, values.profile(devices=1, weights=ref), **changes)


def cached(ref: str, size_gib: float) -> CachedWeights:
    return CachedWeights(ref=ref, size_bytes=int(size_gib * GIB))


def plan(fleet: ClusterSnapshot) -> tuple[dict[ModelName, NodeId], dict[str, Refusal]]:
    """Return where each model starts, and the nearest node's reason for each that does not."""
    found = reconcile(fleet, Pack()).plan
    placed = {
        action.model: action.shards[0][0]
        for action in found.actions
        if isinstance(action, StartReplica)
    }
    return placed, {str(item.model): item.parts[0].parts[0] for item in found.unplaced}


def runs(node: str, spec: ShardSpec, state: ShardState, done_gib: float = 0.0) -> ReplicaRecord:
    """Return a replica of one shard, whose node says this of it."""
    progress = Progress(what="weights", done=done_gib * GIB, total=None, unit="bytes")
    report = values.report(node, spec, state)
    replica = Replica(
        id=spec.replica,
        model=spec.model,
        profile=spec.profile,
        spec_hash=spec.spec_hash,
        epoch=Epoch(1),
        state=ReplicaState.READY if state is ShardState.READY else ReplicaState.STARTING,
    )
    report = replace(report, shard=replace(report.shard, progress=progress))
    return ReplicaRecord(replica=replica, shards=((NodeId(node), spec),), reports={spec.id: report})


def big_on(node: str) -> ShardSpec:
    return values.shard(f"big-{node}.0", weights="hf:acme/big@1", devices=(f"{node}-gpu0",))


def test_two_models_of_one_plan_are_added_up_on_the_disk(snapshot: MakeSnapshot) -> None:
    models = [entry("m", "hf:acme/a@1"), entry("n", "hf:acme/b@1")]
    facts = facts_of(a=60, b=60)
    alone = values.inventory("a", devices=2, disk_free_mib=100 * 1024)
    placed, refused = plan(snapshot(models, [alone], facts=facts))
    assert placed == {"m": "a"}
    assert refused["n"].code == "disk_short"
    assert refused["n"].sentence == (
        "a has 40.0 GiB of disk for weights, unused ones counted, 60.0 GiB on their way left out, "
        "and these take 60.0 GiB"
    )
    assert refused["n"].hint.startswith("short by 20.0 GiB")
    other = values.inventory("b", devices=2, disk_free_mib=100 * 1024)
    placed, refused = plan(snapshot(models, [alone, other], facts=facts))
    assert (placed, refused) == ({"m": "a", "n": "b"}, {})


def test_weights_that_two_share_are_counted_once(snapshot: MakeSnapshot) -> None:
    models = [entry("m", "hf:acme/a@1"), entry("n", "hf:acme/a@1")]
    node = values.inventory("a", devices=2, disk_free_mib=100 * 1024)
    placed, refused = plan(snapshot(models, [node], facts=facts_of(a=60)))
    assert (placed, refused) == ({"m": "a", "n": "a"}, {})


def test_weights_are_not_removed_for_others_once_the_plan_needs_them(
    snapshot: MakeSnapshot,
) -> None:
    models = [entry("m", "hf:acme/new@1"), entry("n", "hf:acme/old@1")]
    node = values.inventory(
        "a", devices=2, disk_free_mib=10 * 1024, weights=(cached("hf:acme/old@1", 60),)
    )
    placed, refused = plan(snapshot(models, [node], facts=facts_of(new=60, old=60)))
    assert placed == {"m": "a"}
    assert refused["n"].code == "disk_short"
    assert refused["n"].sentence == "the weights on a give way to 60.0 GiB on their way there"


def test_what_has_come_of_weights_on_their_way_is_not_counted_twice(
    snapshot: MakeSnapshot,
) -> None:
    spec = big_on("a")
    node = values.inventory("a", devices=2, disk_free_mib=160 * 1024)  # of 300 GiB
    facts = facts_of(big=200, small=90)

    def placed(state: ShardState, done_gib: float) -> dict[ModelName, NodeId]:
        replicas = (runs("a", spec, state, done_gib),)
        models = [entry("n", "hf:acme/small@1")]
        return plan(snapshot(models, [node], facts=facts, replicas=replicas))[0]

    assert placed(ShardState.FETCHING, 140.0) == {"n": "a"}
    assert placed(ShardState.FETCHING, 100.0) == {}
    assert placed(ShardState.INSTALLING, 0.0) == {}
    assert placed(ShardState.READY, 0.0) == {"n": "a"}, "wherever its engine has them"


def test_files_of_the_nodes_owner_take_no_disk(snapshot: MakeSnapshot) -> None:
    facts = {"path:/models/big": WeightFacts(disk_mib=9000.0)}
    node = values.inventory("a", devices=1, disk_free_mib=100)
    placed, _ = plan(snapshot([entry("m", "path:/models/big")], [node], facts=facts))
    assert placed == {"m": "a"}


def test_a_size_that_becomes_known_is_explained_as_by_a_fresh_look(
    snapshot: MakeSnapshot,
) -> None:
    nodes = [values.inventory(name, devices=1, disk_free_mib=100 * 1024) for name in "abcde"]
    fleet = snapshot(
        [entry("n", "hf:acme/small@1")],
        nodes,
        facts=facts_of(small=90),
        replicas=tuple(runs(node.node, big_on(node.node), ShardState.FETCHING) for node in nodes),
    )
    memory = Memory()
    assert reconcile(fleet, Pack(), memory) == reconcile(fleet, Pack())
    later = replace(fleet, facts=facts_of(big=200, small=90))
    second = reconcile(later, Pack(), memory)
    assert second == reconcile(later, Pack())
    assert {part.code for part in second.plan.unplaced[0].parts[0].parts} == {"disk_short"}


sizes_gib = st.integers(1, 60)
fleets = st.lists(
    st.tuples(st.integers(0, 120), st.sets(st.sampled_from(REFS), max_size=3)),
    min_size=1,
    max_size=3,
)
catalogs = st.lists(st.sampled_from(REFS), min_size=1, max_size=6)


class Disks:
    """What every node had at first, and what was sent there since."""

    def __init__(self, nodes: Sequence[NodeInventory], sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.free = {node.node: (node.disk_free_mib or 0) // 1024 for node in nodes}
        self.first = {node.node: {item.ref for item in node.weights} for node in nodes}
        self.needed: defaultdict[NodeId, set[str]] = defaultdict(set)

    def left_gib(self, node: NodeId, *also: str) -> int:
        """Return what is left if all that is needed has come and nothing else was kept."""
        needed, first = self.needed[node] | set(also), self.first[node]
        taken = sum(self.sizes[ref] for ref in needed - first)
        return self.free[node] + sum(self.sizes[ref] for ref in first - needed) - taken


def take_in(disks: Disks, decided: Sequence[object]) -> list[tuple[NodeId, ShardSpec]]:
    started = [
        shard for action in decided if isinstance(action, StartReplica) for shard in action.shards
    ]
    for node, spec in started:
        disks.needed[node] |= spec.refs
    return started


def arrive(
    node: NodeInventory, started: Sequence[tuple[NodeId, ShardSpec]], sizes: Mapping[str, int]
) -> tuple[NodeInventory, list[ReplicaRecord]]:
    """Let half of what is on its way come, with unneeded weights removed for it as agents do."""
    mine = [spec for name, spec in started if name == node.node]
    needed = {ref for spec in mine for ref in spec.refs}
    weights = {item.ref: item for item in node.weights}
    free_mib = node.disk_free_mib or 0
    for ref in needed - weights.keys():
        free_mib -= sizes[ref] * 512
    for ref in [ref for ref in weights if ref not in needed]:
        if free_mib < 0:
            free_mib += sizes[ref] * 1024
            del weights[ref]
    records = [
        runs(node.node, spec, ShardState.FETCHING, sizes[spec.weights] / 2)
        if spec.weights not in weights
        else runs(node.node, spec, ShardState.READY)
        for spec in mine
    ]
    return replace(node, disk_free_mib=free_mib, weights=tuple(weights.values())), records


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sizes=st.tuples(*[sizes_gib] * len(REFS)), fleet=fleets, first=catalogs, second=catalogs)
def test_no_disk_is_promised_twice_and_none_is_left_that_would_do(
    snapshot: MakeSnapshot,
    sizes: tuple[int, ...],
    fleet: list[tuple[int, set[str]]],
    first: list[str],
    second: list[str],
) -> None:
    size_of = dict(zip(REFS, sizes, strict=True))
    facts = {ref: WeightFacts(disk_mib=size * 1024.0) for ref, size in size_of.items()}
    nodes = [
        values.inventory(
            f"n{index}",
            devices=16,
            disk_free_mib=free * 1024,
            weights=tuple(cached(ref, size_of[ref]) for ref in sorted(there)),
        )
        for index, (free, there) in enumerate(fleet)
    ]
    disks = Disks(nodes, size_of)
    models = [entry(f"a{index}", ref) for index, ref in enumerate(first)]
    decided = reconcile(snapshot(models, nodes, facts=facts), Pack()).plan
    started = take_in(disks, decided.actions)
    check(disks, models, decided.unplaced)

    arrived = [arrive(node, started, size_of) for node in nodes]
    nodes = [node for node, _ in arrived]
    replicas = tuple(record for _, records in arrived for record in records)
    models = [entry(f"b{index}", ref) for index, ref in enumerate(second)]
    kept = [entry(f"a{index}", ref) for index, ref in enumerate(first)]
    running = {record.replica.model for record in replicas}
    everything = [*(model for model in kept if model.name in running), *models]
    later = snapshot(everything, nodes, facts=facts, replicas=replicas)
    decided = reconcile(later, Pack()).plan
    take_in(disks, decided.actions)
    check(disks, everything, decided.unplaced)


def check(disks: Disks, models: Sequence[Model], unplaced: Sequence[Refusal]) -> None:
    for node in disks.free:
        assert disks.left_gib(node) >= 0, f"{node} was promised more than it has"
    ref_of = {model.name: model.profiles[0].weights for model in models}
    for refusal in unplaced:
        assert refusal.model is not None
        assert {part.code for part in refusal.parts[0].parts} == {"disk_short"}
        for node in disks.free:
            assert disks.left_gib(node, ref_of[refusal.model]) < 0, f"{node} had room"
