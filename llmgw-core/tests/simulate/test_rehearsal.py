"""What an operator is told before anything runs."""

from __future__ import annotations

from llmgw.contracts.engine import EngineTraits
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.decide.policies.spread import Spread
from llmgw.control.decide.snapshot import Engine
from llmgw.domain.roles import Role
from llmgw.simulate import rehearse
from llmgw.testing import values

ENGINES = {values.ENGINE: Engine(traits=EngineTraits())}
FLEET = [values.inventory(name, devices=2) for name in ("a", "b")]


def test_a_rehearsal_says_what_runs_where_and_what_does_not() -> None:
    catalog = [
        values.model("one", values.profile(devices=1)),
        values.model("two", values.profile(devices=2)),
        values.model("three", values.profile(devices=2)),
    ]
    found = rehearse(FLEET, catalog, policy=Pack(), engines=ENGINES)
    # Large ones first: had the small one come before them, two devices would stay idle.
    assert {action.model for action in found.placed} == {"two", "three"}
    assert [refusal.model for refusal in found.refused] == ["one"]
    assert sorted(found.free_devices.values()) == [0, 0]


def test_it_says_what_a_lost_node_would_do() -> None:
    catalog = [values.model("m", values.profile(devices=1), replicas={"min": 2})]
    found = rehearse(FLEET, catalog, policy=Spread(), engines=ENGINES)
    assert [loss.node for loss in found.losses] == ["a", "b"]
    assert [[action.shards[0][0] for action in loss.moved] for loss in found.losses] == [
        ["b"],
        ["a"],
    ]
    full = rehearse(FLEET[:1], catalog, policy=Spread(), engines=ENGINES)
    (loss,) = full.losses
    assert loss.moved == ()
    assert [refusal.model for refusal in loss.refused] == ["m"]


def test_each_role_is_placed_and_missed_by_itself() -> None:
    fleet = [
        values.inventory(name, devices=2, capabilities=frozenset({"roles"})) for name in ("a", "b")
    ]
    halves = [values.profile(role, devices=1, role=role) for role in Role]
    catalog = [values.model("m", *halves, roles={"prefill": {"min": 2}, "decode": {"min": 1}})]
    found = rehearse(fleet, catalog, policy=Pack(), engines=ENGINES)
    roles = [action.shards[0][1].role for action in found.placed]
    assert sorted(role for role in roles if role) == ["decode", "prefill", "prefill"]
    assert [len(loss.moved) for loss in found.losses] == [1, 0]
    refused = [refusal.sentence.split(" cannot")[0] for x in found.losses for refusal in x.refused]
    assert refused == ["m (prefill)", "m (decode)"]


def test_sleeping_models_are_placed_only_if_asked_for() -> None:
    catalog = [values.model("m", replicas={"min": 0}, idle_after=60)]
    assert rehearse(FLEET, catalog, policy=Pack(), engines=ENGINES).placed == ()
    awake = rehearse(FLEET, catalog, policy=Pack(), engines=ENGINES, awake=True)
    assert [action.model for action in awake.placed] == ["m"]
