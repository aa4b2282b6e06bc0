"""Where replicas go, and the reasons why they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmgw.contracts.engine import EngineTraits
from llmgw.contracts.placement import Candidate, PlacementRequest, Score, Verdict, Veto
from llmgw.control.decide.codes import RefusalCode as Code
from llmgw.control.decide.explain import explain_refused
from llmgw.control.decide.need import need_of
from llmgw.control.decide.placement import Placement, Placer
from llmgw.control.decide.policies.fabric import Fabric
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.decide.policies.spread import Spread
from llmgw.control.decide.refusals import nearness
from llmgw.control.decide.snapshot import (
    Avoidance,
    ClusterSnapshot,
    Engine,
    Limits,
    NodeRecord,
    ReplicaRecord,
)
from llmgw.domain.catalog import spec_hash
from llmgw.domain.ids import Epoch, NodeId, ReplicaId
from llmgw.domain.nodes import (
    CachedWeights,
    DeviceHealth,
    DeviceProcess,
    InstallableEngine,
    NodeState,
)
from llmgw.domain.plans import Refusal
from llmgw.domain.replicas import Replica, ReplicaState
from llmgw.domain.weights import WeightFacts
from llmgw.testing import values

MakeSnapshot = Callable[..., ClusterSnapshot]


def place(
    fleet: ClusterSnapshot, policy: Any = None, *, count: int = 1
) -> list[Placement | Refusal]:
    """Place `count` replicas of the first model's first profile."""
    placer = Placer(fleet, policy or Pack())
    need = need_of(fleet, fleet.models[0], fleet.models[0].profiles[0])
    return [placer.place(need, ReplicaId(f"r{number}")) for number in range(count)]


def where(answers: Sequence[Placement | Refusal]) -> list[str]:
    return [
        ",".join(node for node, _ in answer.shards)
        if isinstance(answer, Placement)
        else answer.code
        for answer in answers
    ]


def gpu(**changes: Any) -> Any:
    return values.model("m", values.profile(devices=1, **changes))


def first_code(answer: Placement | Refusal) -> str:
    assert isinstance(answer, Refusal)
    return answer.parts[0].code if answer.parts else answer.code


def test_no_device_and_no_port_is_given_twice(snapshot: MakeSnapshot) -> None:
    fleet = snapshot([gpu()], [values.inventory("a", devices=8), values.inventory("b", devices=8)])
    answers = place(fleet, count=20)
    placed = [item for answer in answers if isinstance(answer, Placement) for item in answer.shards]
    assert len(placed) == 16
    assert len({device for _, spec in placed for device in spec.devices}) == 16
    assert len({(node, port) for node, spec in placed for port in spec.ports}) == 16
    assert [first_code(answer) for answer in answers[16:]] == ["devices_busy"] * 4


def test_two_agents_on_one_machine_share_devices_and_ports(snapshot: MakeSnapshot) -> None:
    shared = [values.device("host", index) for index in range(2)]
    nodes = [
        values.inventory(name, devices=tuple(shared), machine_id="host") for name in ("a", "b")
    ]
    answers = place(snapshot([gpu()], nodes), count=3)
    placed = [item for answer in answers if isinstance(answer, Placement) for item in answer.shards]
    assert len({spec.devices for _, spec in placed}) == 2
    assert len({spec.ports for _, spec in placed}) == 2
    assert first_code(answers[2]) == "devices_busy"


def test_pack_fills_a_node_before_it_opens_another(snapshot: MakeSnapshot) -> None:
    nodes = [values.inventory(name, devices=2) for name in ("a", "b")]
    fleet = snapshot([gpu()], nodes)
    assert sorted(where(place(fleet, Pack(), count=2))) != where(place(fleet, Spread(), count=2))
    assert len(set(where(place(fleet, Pack(), count=2)))) == 1
    assert set(where(place(fleet, Spread(), count=2))) == {"a", "b"}


def test_weights_at_hand_decide_between_equal_nodes(snapshot: MakeSnapshot) -> None:
    cached = (CachedWeights(ref="path:/models/fake", size_bytes=1),)
    nodes = [values.inventory("a", devices=2), values.inventory("b", devices=2, weights=cached)]
    assert where(place(snapshot([gpu()], nodes))) == ["b"]


def test_tensor_parallel_stays_on_one_island_where_links_matter(snapshot: MakeSnapshot) -> None:
    split = tuple(values.device("a", index, island=f"nv{index // 2}") for index in range(4))
    model = values.model("m", values.profile(devices=2, fabric="nvlink", parallel={"tensor": 2}))
    answers = place(snapshot([model], [values.inventory("a", devices=split)]), count=3)
    chosen = [
        answer.shards[0][1].devices for answer in answers[:2] if isinstance(answer, Placement)
    ]
    assert sorted(chosen) == [("a-gpu0", "a-gpu1"), ("a-gpu2", "a-gpu3")]
    wide = values.model("m", values.profile(devices=4, fabric="nvlink", parallel={"tensor": 4}))
    node = values.inventory("a", devices=split)
    (answer,) = place(snapshot([wide], [node]))
    assert first_code(answer) == "island_too_small"
    loose = values.model("m", values.profile(devices=4, parallel={"tensor": 4}))
    assert where(place(snapshot([loose], [node]))) == ["a"]
    (vetoed,) = place(snapshot([loose], [node]), Fabric())
    assert first_code(vetoed) == "island_too_small"


def gang(count: int, **changes: Any) -> Any:
    return values.model("m", values.profile(devices=2 * count, nodes=count, **changes))


def test_a_gang_goes_to_nodes_that_share_a_fabric_or_nowhere(snapshot: MakeSnapshot) -> None:
    nodes = [
        values.inventory("a", devices=2, fabric={"ib": "left", "ib.address": "10.0.0.1"}),
        values.inventory("b", devices=2, fabric={"ib": "right", "ib.address": "10.0.0.2"}),
        values.inventory("c", devices=2, fabric={"ib": "left", "ib.address": "10.0.0.3"}),
        values.inventory("d", devices=2),
    ]
    (answer,) = place(snapshot([gang(2, fabric="ib")], nodes))
    assert isinstance(answer, Placement)
    assert [node for node, _ in answer.shards] == ["a", "c"]
    first, second = (spec for _, spec in answer.shards)
    assert [(peer.rank, peer.node, peer.address) for peer in first.peers] == [
        (0, "a", "10.0.0.1"),
        (1, "c", "10.0.0.3"),
    ]
    assert first.peers == second.peers
    assert (first.rank, second.rank) == (0, 1)
    assert where(place(snapshot([gang(3, fabric="ib")], nodes))) == ["gang_too_small"]


@pytest.mark.parametrize(
    ("wanted", "last", "met"),
    [
        (None, {"eth1.address": "10.1.0.2"}, ["192.0.2.1", "192.0.2.2"]),
        ("eth1", {"eth1.address": "10.1.0.2"}, ["10.1.0.1", "10.1.0.2"]),
        ("eth1", {}, ["192.0.2.1", "192.0.2.2"]),
        ("eth1", {"eth1.address": "10.1.0.2", "ib.address": "10.9.0.2"}, ["10.9.0.1", "10.9.0.2"]),
    ],
    ids=["not asked for", "on all nodes", "not on all nodes", "a fabric comes first"],
)
def test_a_gang_meets_in_one_network(
    snapshot: MakeSnapshot, wanted: str | None, last: dict[str, str], met: list[str]
) -> None:
    first = {"ib": "left", "ib.address": "10.9.0.1", "eth1.address": "10.1.0.1"}
    nodes = [
        values.inventory(name, devices=2, fabric=fabric, data_address=f"192.0.2.{number}")
        for number, (name, fabric) in enumerate(
            [("a", first), ("b", {"ib": "left", **last})], start=1
        )
    ]
    limits = Limits(mgmt_interface=wanted)
    (answer,) = place(snapshot([gang(2, fabric="ib")], nodes, limits=limits))
    assert isinstance(answer, Placement)
    assert [peer.address for peer in answer.shards[0][1].peers] == met


def test_a_bridge_of_the_same_address_everywhere_is_no_fabric(snapshot: MakeSnapshot) -> None:
    bridge = {"docker0.address": "172.17.0.1"}
    nodes = [values.inventory(name, devices=2, fabric=bridge) for name in ("a", "b")]
    assert where(place(snapshot([gang(2)], nodes))) == ["gang_too_small"]


def test_a_gang_takes_one_agent_of_each_machine(snapshot: MakeSnapshot) -> None:
    fabric = {"ib": "x"}
    alike = [
        values.inventory(name, devices=2, fabric=fabric, machine_id="host") for name in ("a", "b")
    ]
    (answer,) = place(snapshot([gang(2)], alike))
    assert isinstance(answer, Refusal)
    assert "1 could take a shard" in answer.sentence
    assert "--machine" in answer.hint
    apart = [values.inventory(name, devices=2, fabric=fabric) for name in ("a", "b")]
    assert where(place(snapshot([gang(2)], apart))) == ["a,b"]


def test_a_gang_that_does_not_fit_books_nothing(snapshot: MakeSnapshot) -> None:
    nodes = [
        values.inventory("a", devices=2, fabric={"ib": "x"}),
        values.inventory("b", devices=1, fabric={"ib": "x"}),
    ]
    fleet = snapshot([gang(2)], nodes)
    placer = Placer(fleet, Pack())
    answer = placer.place(
        need_of(fleet, fleet.models[0], fleet.models[0].profiles[0]), ReplicaId("r")
    )
    assert isinstance(answer, Refusal)
    assert [len(account.free) for account in placer.accounts.nodes.values()] == [2, 1]


BUSY = DeviceProcess(pid=4711, memory_mib=70000, ours=False)
REASONS: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
    # code, changes of the profile, of the node's inventory, of its record
    ("node_not_ready", {}, {}, {"state": NodeState.SUSPECT}),
    ("node_cordoned", {}, {}, {"cordoned": True}),
    ("node_draining", {}, {}, {"cordoned": True, "draining": True}),
    ("agent_leaving", {}, {"leaving": True}, {}),
    ("agent_too_new", {}, {"agent_version": "0.9.0"}, {}),
    ("pool_mismatch", {"pool": "chat"}, {}, {}),
    ("label_mismatch", {"labels": {"zone": "a"}}, {"labels": {"zone": "b"}}, {}),
    ("fabric_missing", {"fabric": "ib"}, {}, {}),
    ("engine_unknown", {"engine": "nix"}, {}, {}),
    ("engine_missing", {"version": "2.0"}, {}, {}),
    ("device_vendor", {}, {"devices": (values.device("a", 0, vendor="amd"),)}, {}),
    (
        "device_kind",
        {"devices": {"count": 1, "memory_gib": 1, "match": {"kind": "B200"}}},
        {},
        {},
    ),
    (
        "devices_failed",
        {},
        {"devices": (values.device("a", 0, health=DeviceHealth.FAILED),)},
        {},
    ),
    ("too_few_devices", {"devices": {"count": 3, "memory_gib": 1}}, {}, {}),
    ("device_memory", {"devices": {"count": 1, "memory_gib": 141}}, {}, {}),
    ("memory_unknown", {"devices": {"count": 1}}, {}, {}),
    (
        "foreign_process",
        {},
        {"devices": (values.device("a", 0, memory_used_mib=70000, processes=(BUSY,)),)},
        {},
    ),
    ("ram_short", {"ram_gib": 600}, {}, {}),
    ("no_port", {}, {"port_range": (5, 4)}, {}),
]


@pytest.mark.parametrize(
    ("code", "profile", "inventory", "node"), REASONS, ids=[reason[0] for reason in REASONS]
)
def test_each_reason_has_its_code_and_says_what_was_needed(
    snapshot: MakeSnapshot,
    record: Callable[..., NodeRecord],
    code: str,
    profile: dict[str, Any],
    inventory: dict[str, Any],
    node: dict[str, Any],
) -> None:
    asked = {"devices": {"count": 1, "memory_gib": 40}, **profile}
    model = values.model("m", values.profile(**asked))
    known = values.inventory("a", **{"devices": (values.device("a", 0),), **inventory})
    fleet = snapshot([model], [record(known, **node)], limits=Limits(agent_version="0.1"))
    (answer,) = place(fleet)
    assert isinstance(answer, Refusal)
    (part,) = answer.parts
    assert part.code == code
    assert part.sentence
    assert part.node == "a"
    assert explain_refused(fleet, model, Pack()) is not None


def test_a_node_that_the_site_gave_a_lock_to_may_install_that_version(
    snapshot: MakeSnapshot,
) -> None:
    lock = (InstallableEngine(engine="fake", version="site-1"),)
    nodes = [values.inventory("a", devices=1), values.inventory("b", devices=1, installable=lock)]
    answers = place(snapshot([gpu(version="site-1")], nodes), count=2)
    assert where(answers)[0] == "b"
    assert isinstance(answers[1], Refusal)
    assert {part.code for part in answers[1].parts} == {"engine_missing", "devices_busy"}
    (other,) = place(snapshot([gpu(version="site-2")], nodes))
    assert isinstance(other, Refusal)
    assert {part.code for part in other.parts} == {"engine_missing"}


def test_only_versions_with_a_lock_are_counted_on_and_the_refusal_names_them(
    snapshot: MakeSnapshot,
) -> None:
    engines = {values.ENGINE: Engine(traits=EngineTraits(), installable=frozenset({"2", "1"}))}
    bare = [values.inventory("a", devices=1, engines=())]
    (placed,) = place(snapshot([gpu(version="2")], bare, engines=engines))
    assert where([placed]) == ["a"]
    for version, why in (
        (None, "a has no fake and the profile names no version to install"),
        ("3", "a has no fake 3 and cannot install it by itself"),
    ):
        (answer,) = place(snapshot([gpu(version=version)], bare, engines=engines))
        assert isinstance(answer, Refusal)
        (part,) = answer.parts
        assert (part.code, part.sentence) == ("engine_missing", why)
        assert "`version` that it can install: 1, 2;" in (part.hint or "")


def test_every_code_has_a_meaning_for_the_handbook() -> None:
    assert all(code.meaning.endswith(".") for code in Code)
    assert len({code.meaning for code in Code}) == len(Code)


def test_every_code_is_explained_on_the_placement_page() -> None:
    page = (Path(__file__).parents[4] / "docs" / "placement.md").read_text()
    missing = [code for code in Code if f"| `{code}` | {code.meaning} |" not in page]
    assert missing == []


def test_a_place_where_this_version_failed_is_left_alone_for_a_while(
    snapshot: MakeSnapshot,
) -> None:
    model = gpu()
    nodes = [values.inventory(name, devices=1) for name in ("a", "b")]
    hashed = spec_hash(model, model.profiles[0])
    avoided = {(hashed, NodeId("a")): Avoidance(until=1030.0, count=1, failure=None)}
    fleet = snapshot([model], nodes, avoided=avoided)
    answers = place(fleet, count=2)
    assert where(answers)[0] == "b"
    assert {part.code for part in answers[1].parts} == {"crash_loop", "devices_busy"}  # type: ignore[union-attr]
    later = snapshot([model], nodes, avoided=avoided, now=1031.0)
    assert where(place(later, count=2)) == ["a", "b"]


def test_weights_that_do_not_fit_on_the_disk_are_refused_unless_they_are_there(
    snapshot: MakeSnapshot,
) -> None:
    model, facts = gpu(weights="hf:acme/m@1"), {"hf:acme/m@1": WeightFacts(disk_mib=9000.0)}
    small = values.inventory("a", devices=1, disk_free_mib=100)
    (answer,) = place(snapshot([model], [small], facts=facts))
    assert first_code(answer) == "disk_short"
    cached = (CachedWeights(ref="hf:acme/m@1", size_bytes=1),)
    there = values.inventory("a", devices=1, disk_free_mib=100, weights=cached)
    assert where(place(snapshot([model], [there], facts=facts))) == ["a"]


def test_weights_that_nobody_uses_make_room_for_others(snapshot: MakeSnapshot) -> None:
    model, facts = gpu(weights="hf:acme/m@1"), {"hf:acme/m@1": WeightFacts(disk_mib=9000.0)}
    cached = (CachedWeights(ref="hf:acme/former@1", size_bytes=9 << 30),)
    node = values.inventory("a", devices=2, disk_free_mib=100, weights=cached)
    fleet = snapshot([model], [node], facts=facts)
    assert where(place(fleet)) == ["a"]
    spec = values.shard("former.0", weights="hf:acme/former@1")
    user = Replica(
        id=spec.replica,
        model=spec.model,
        profile=spec.profile,
        spec_hash=spec.spec_hash,
        epoch=Epoch(1),
        state=ReplicaState.READY,
    )
    used = ReplicaRecord(replica=user, shards=((node.node, spec),))
    (answer,) = place(replace(fleet, replicas=(used,)))
    assert first_code(answer) == "disk_short"


def test_a_partitioned_device_is_given_out_in_its_parts_only(snapshot: MakeSnapshot) -> None:
    whole = values.device("a", 0)
    parts = tuple(values.device("a", index, parent=whole.id, memory_mib=41000) for index in (1, 2))
    node = values.inventory("a", devices=(whole, *parts))
    answers = place(snapshot([gpu()], [node]), count=3)
    chosen = [
        answer.shards[0][1].devices for answer in answers[:2] if isinstance(answer, Placement)
    ]
    assert sorted(chosen) == [("a-gpu1",), ("a-gpu2",)]
    assert isinstance(answers[2], Refusal)


class _Picky:
    name = "picky"

    def rank(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> Sequence[Verdict]:
        return [
            Score(1.0, "liked") if candidate.offers[0].node == "b" else Veto("too_warm", "too warm")
            for candidate in candidates
        ]


def test_a_policy_only_ranks_and_its_veto_is_shown_as_it_said(snapshot: MakeSnapshot) -> None:
    nodes = [values.inventory(name, devices=1) for name in ("a", "b")]
    answers = place(snapshot([gpu()], nodes), _Picky(), count=2)
    assert where(answers) == ["b", "profile_unplaced"]
    assert first_code(answers[1]) == "too_warm"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda _: [float("cold")], "ValueError"),
        (lambda places: [Score(1.0, "here")] * (len(places) + 1), "one verdict for each of 2"),
        (lambda places: [None] * len(places), "one verdict for each of 2"),
    ],
    ids=["raises", "too many", "none"],
)
def test_a_policy_s_mistake_is_the_reason_and_ends_nothing(
    snapshot: MakeSnapshot, answer: Callable[[Sequence[Candidate]], Any], says: str
) -> None:
    class Broken:
        name = "broken"

        def rank(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> Any:
            return answer(candidates)

    nodes = [values.inventory(name, devices=1) for name in ("a", "b")]
    (refusal,) = place(snapshot([gpu()], nodes), Broken())
    assert isinstance(refusal, Refusal)
    assert first_code(refusal) == "policy_veto"
    assert "policy broken failed: " in refusal.sentence
    assert says in refusal.sentence


def test_a_refusal_of_many_nodes_names_a_few_and_counts_the_rest(snapshot: MakeSnapshot) -> None:
    nodes = [values.inventory(f"n{index:03}") for index in range(50)]
    (answer,) = place(snapshot([gpu()], nodes))
    assert isinstance(answer, Refusal)
    assert [part.node for part in answer.parts] == ["n000", "n001", "n002", None]
    assert "47 more nodes" in answer.parts[-1].sentence


def test_no_node_at_all_is_a_reason_too(snapshot: MakeSnapshot) -> None:
    assert where(place(snapshot([gpu()]))) == ["no_nodes"]


def test_every_reason_of_a_node_has_its_place_among_the_nearest() -> None:
    of_no_node = {
        Code.UNPLACED,
        Code.NO_PROFILE,
        Code.NO_NODES,
        Code.PROFILE_UNPLACED,
        Code.ROLLOUT_FAILED,
        Code.START_FAILED,
        Code.SLEEP_UNSAFE,
        Code.TENSOR_INDIVISIBLE,
        Code.GANG_TOO_SMALL,
        Code.ADAPTER_FAILED,
        Code.POLICY_VETO,
    }
    last = nearness("of no node")
    assert {code for code in Code if nearness(code) == last} == of_no_node
