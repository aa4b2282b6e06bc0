"""The planner under seeded faults, and the checks that watch it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmgw.domain.ids import Epoch
from llmgw.domain.replicas import ShardState
from llmgw.simulate import FAULTS, World, WorldSize
from llmgw.simulate.invariants import Violation, check_devices, check_epoch, check_stop
from llmgw.simulate.nodes import Engine
from llmgw.testing import values

SMALL = WorldSize(nodes=8, models=8, hours=0.5)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fleet_in_trouble_keeps_every_invariant_and_comes_to_rest(seed: int) -> None:
    outcome = World(SMALL, seed=seed, faults=FAULTS).run()
    assert outcome.faults > 30
    assert outcome.starts > 8
    # Only agents' silence is looked at when nothing changes, not the whole catalog at full speed.
    assert outcome.quiet_passes < 1000


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(20, 28))
def test_a_large_fleet_in_trouble_for_an_hour_keeps_every_invariant(seed: int) -> None:
    """D1; `nox -s simulate` tries other seeds, sizes and lengths."""
    size = WorldSize(nodes=200, models=40, hours=1.0)
    assert World(size, seed=seed, faults=FAULTS).run().faults > 100


@pytest.mark.timeout(120)
def test_a_thousand_nodes_in_trouble_keep_every_invariant() -> None:
    """`nox -s soak -- simulate` does so for a day."""
    size = WorldSize(nodes=1000, devices=8, models=40, hours=0.2)
    assert World(size, seed=1, faults=FAULTS).run().faults > 20


def test_half_a_gang_is_not_waited_for_after_its_leader_is_gone() -> None:
    World(WorldSize(nodes=12, models=10), seed=14, faults=FAULTS).run()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_models_with_roles_in_trouble_come_to_rest_with_both(seed: int) -> None:
    assert World(replace(SMALL, paired=8), seed=seed, faults=FAULTS).run().starts > 8


def test_a_seed_replays_step_by_step() -> None:
    first, second, other = (World(SMALL, seed=seed, faults=FAULTS).run() for seed in (9, 9, 10))
    assert first == second
    assert first.history != other.history


def test_a_violation_names_the_seed_and_how_to_replay_it() -> None:
    world = World(SMALL, seed=4, faults=FAULTS)

    def break_something() -> None:
        raise Violation("on purpose")

    world.events.after(100.0, break_something)
    with pytest.raises(
        Violation, match=r"seed 4, 1100.00 s(.|\n)*World\(.*seed=4, faults=FAULTS\)\.run\(\)"
    ):
        world.run()


def test_each_check_fails_on_what_it_is_for() -> None:
    node = next(iter(World(SMALL, seed=0, faults=FAULTS).nodes.values()))
    spec = values.shard("r.0", devices=("gpu",), ports=(1,))
    for name in ("one", "two"):
        engine = Engine(spec=spec, epoch=Epoch(1), state=ShardState.READY)
        node.engines[values.shard(f"{name}.0").id] = engine
    with pytest.raises(Violation, match="gpu"):
        check_devices(node)
    with pytest.raises(Violation, match="fell"):
        check_epoch(node, Epoch(5))
    server = World(SMALL, seed=0, faults=FAULTS).servers["server0"]
    check_stop(server, "r", ShardState.READY)
