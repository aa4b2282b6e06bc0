"""Prefill and decode replicas from one entry: placed, scaled and published by role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmgw.contracts.engine import EngineTraits
from llmgw.control.decide.checks import catalog_problems
from llmgw.control.decide.parts import key_of, named, parts_of
from llmgw.domain.catalog import Model, spec_hash
from llmgw.domain.endpoints import ModelState
from llmgw.domain.nodes import NodeInventory
from llmgw.domain.replicas import ReplicaState
from llmgw.domain.roles import Role
from llmgw.testing import values
from llmgw.testing.fake_adapter import FakeEngineAdapter
from llmgw_engine_vllm.pairing import NixlPairing

pytestmark = pytest.mark.anyio


class PairingEngine(FakeEngineAdapter):
    """Two of them share requests; prefill engines are met at their second port."""

    pairing = NixlPairing()
    traits = EngineTraits(runs_on_cpu=True, ports_per_shard=2, meeting_port=1)


@pytest.fixture
def site(make_site: Callable[..., Any]) -> Any:
    return make_site(adapter=PairingEngine())


def node(name: str, devices: int = 0, **changes: Any) -> NodeInventory:
    return values.inventory(
        name, devices=devices, **{"capabilities": frozenset({"roles"}), **changes}
    )


def paired(
    *, devices: int = 0, roles: dict[str, dict[str, int]] | None = None, **changes: Any
) -> Model:
    profiles = [values.profile(role, role=role, devices=devices) for role in Role]
    return values.model("m", *profiles, roles=roles or {}, **changes)


def roles(site: Any) -> dict[Role | None, int]:
    """Count the endpoints that take requests, by role."""
    found: dict[Role | None, int] = {}
    for endpoint in site.router.endpoints[-1]:
        if not endpoint.draining:
            found[endpoint.role] = found.get(endpoint.role, 0) + 1
    return found


async def test_each_role_has_as_many_replicas_as_the_entry_says(site: Any) -> None:
    entry = paired(roles={"prefill": {"min": 2}, "decode": {"min": 3}})
    await site.serve([entry], node("n1"))
    assert roles(site) == {Role.PREFILL: 2, Role.DECODE: 3}
    assert site.router.status("m").state is ModelState.SERVING


async def test_endpoints_carry_their_role_and_where_prefill_engines_are_met(site: Any) -> None:
    await site.serve([paired()], node("n1"))
    endpoints = {endpoint.role: endpoint for endpoint in site.router.endpoints[-1]}
    specs = {record.spec.role: record.spec for record in site.plane.view.replicas()}
    assert endpoints[Role.PREFILL].meeting_port == specs[Role.PREFILL].ports[1]
    assert endpoints[Role.DECODE].meeting_port is None
    # No port is another's.
    ports = [port for spec in specs.values() for port in spec.ports]
    assert len(set(ports)) == len(ports) == 4


async def test_a_replica_with_a_role_is_reached_by_its_partners_on_the_fabric(site: Any) -> None:
    fabric = {"ib": "rail-1", "ib.address": "10.9.0.7"}
    profiles = [values.profile(role, role=role, fabric="ib") for role in Role]
    await site.serve([values.model("m", *profiles)], node("n1", fabric=fabric))
    peers = [record.spec.peers for record in site.plane.view.replicas()]
    assert [[peer.address for peer in each] for each in peers] == [["10.9.0.7"], ["10.9.0.7"]]


async def test_a_model_serves_only_when_both_roles_do(site: Any) -> None:
    """One node with one device: there is room for the prompts and none for the answers."""
    await site.serve([paired(devices=1)], node("n1", devices=1))
    assert roles(site) == {Role.PREFILL: 1}
    status = site.router.status("m")
    assert status.state is ModelState.UNPLACEABLE
    assert status.refusal.sentence.startswith("m (decode) cannot run now")
    refusal = site.plane.view.explain_model("m")
    assert refusal is not None
    site.fleet.join(node("n2", devices=1))
    await site.settle()
    assert roles(site) == {Role.PREFILL: 1, Role.DECODE: 1}
    assert site.router.status("m").state is ModelState.SERVING


async def test_load_adds_replicas_to_the_role_that_it_weighs_on(site: Any) -> None:
    entry = paired(
        roles={
            "prefill": {"min": 1, "max": 3, "target_inflight": 4},
            "decode": {"min": 1, "max": 3, "target_inflight": 4},
        }
    )
    await site.serve([entry], node("n1"))
    busy = next(e.id for e in site.router.endpoints[-1] if e.role is Role.DECODE)
    site.router.use(busy, in_flight=8)
    await site.turn(40)
    await site.settle()
    assert roles(site) == {Role.PREFILL: 1, Role.DECODE: 2}


async def test_a_dead_prefill_replica_is_replaced_by_one_of_its_role(site: Any) -> None:
    await site.serve([paired()], node("n1"), node("n2"))
    dead = next(r for r in site.plane.view.replicas() if r.spec.role is Role.PREFILL)
    site.fleet.cut(dead.nodes[0])
    await site.turn(2, after_s=20.0)
    await site.turn(30, after_s=20.0)
    await site.settle()
    ready = [r for r in site.plane.view.replicas() if r.replica.state is ReplicaState.READY]
    assert {record.spec.role for record in ready} == {Role.PREFILL, Role.DECODE}
    assert site.router.status("m").state is ModelState.SERVING


async def test_a_pair_sleeps_and_one_who_waits_wakes_both(site: Any) -> None:
    entry = paired(roles={"prefill": {"min": 0}, "decode": {"min": 0}}, idle_after=60.0)
    await site.serve([entry], node("n1"))
    assert site.router.status("m").state is ModelState.ASLEEP
    site.plane.nudge("m")
    await site.turn()
    assert site.router.status("m").state is ModelState.WAKING
    await site.settle()
    assert roles(site) == {Role.PREFILL: 1, Role.DECODE: 1}
    for endpoint in site.router.ids:
        site.router.use(endpoint, idle_s=61.0)
    await site.turn(4, after_s=20.0)
    await site.settle()
    assert site.replicas() == []


async def test_whole_replicas_serve_until_both_roles_do(site: Any) -> None:
    whole = values.model("m", values.profile(devices=1), replicas={"min": 1})
    await site.serve([whole], node("n1", devices=3))
    site.plane.set_catalog([paired(devices=1)])
    for _ in range(24):
        site.fleet.settle()
        await site.turn()
        found = roles(site)
        assert found.get(None) or len(found) == 2, found
    assert roles(site) == {Role.PREFILL: 1, Role.DECODE: 1}


async def test_an_agent_that_knows_no_roles_gets_no_half(site: Any) -> None:
    await site.serve([paired()], node("n1", capabilities=frozenset()))
    assert roles(site) == {}
    refusal = site.plane.view.explain_model("m")
    assert "agent_too_old" in str(refusal)


def test_parts_are_remembered_and_named_apart() -> None:
    parts = parts_of(paired(roles={"prefill": {"min": 2}}))
    assert [named(part) for part in parts] == ["m (prefill)", "m (decode)"]
    assert len({key_of(part) for part in parts}) == 2
    assert [part.replicas.min for part in parts] == [2, 1]
    whole = values.model("m")
    assert parts_of(whole) == (whole,)
    assert key_of(whole) == "m"


def test_an_engine_that_cannot_pair_is_refused_where_its_role_stands() -> None:
    problems = catalog_problems([paired()], engines={"fake": FakeEngineAdapter()}, sources={})
    assert [problem.path for problem in problems] == [
        "models[0].profiles[0].role",
        "models[0].profiles[1].role",
    ]
    assert problems[0].message == "fake computes whole requests only"


@pytest.mark.parametrize(
    ("given", "place", "message"),
    [
        ({"profiles": ["prefill"]}, ("profiles",), "needs a profile with the role decode"),
        ({"profiles": ["decode"]}, ("profiles",), "needs a profile with the role prefill"),
        ({"profiles": ["prefill", "decode", None]}, ("profiles",), "has none"),
        ({"profiles": [None], "roles": {"decode": {}}}, (), "roles needs profiles"),
        ({"profiles": ["prefill", "decode"], "replicas": {"min": 2}}, (), "roles.prefill"),
        (
            {"profiles": ["prefill", "decode"], "roles": {"decode": {"min": 0}}},
            (),
            "must both be 0, or neither",
        ),
        ({"profiles": ["prefill", "decode"], "idle_after": "5m"}, (), "idle_after needs roles."),
    ],
)
def test_nonsense_is_refused_with_its_place(given: Any, place: Any, message: str) -> None:
    profiles = [
        {"name": f"x{index}", "engine": "fake", "weights": "path:/m", "role": role}
        for index, role in enumerate(given["profiles"])
    ]
    with pytest.raises(ValueError, match=message) as caught:
        Model(**{**given, "name": "m", "profiles": profiles})
    (error,) = caught.value.errors()  # type: ignore[attr-defined]  # pydantic's
    assert error["loc"] == place


def test_a_profile_without_a_role_keeps_its_version_and_one_with_a_role_has_its_own() -> None:
    entry = values.model("m", values.profile())
    (profile,) = entry.profiles
    hashes = {spec_hash(entry, profile.model_copy(update={"role": role})) for role in (None, *Role)}
    assert len(hashes) == 3
    assert spec_hash(entry, profile) == "ce65b2fcf477fd1f"
