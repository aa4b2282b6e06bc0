"""How good placement is next to an exact solver: `python against_solver.py [CASES] [LIMIT_S]`.

Draws fleets of at most 40 nodes and catalogs that want more than fits, places them by the
shipped planner onto the empty fleet, and compares the devices put to use, weighted by the
priority of what uses them, with the bound that OR-Tools' CP-SAT proves in its time. Needs
`ortools`, which is a dependency of nothing that ships.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import click
from ortools.sat.python import cp_model  # type: ignore[import-not-found, unused-ignore]

from llmgw.contracts.engine import EngineTraits
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.decide.snapshot import Engine
from llmgw.domain.catalog import Model
from llmgw.domain.nodes import NodeInventory
from llmgw.simulate import rehearse
from llmgw.testing import values

GOAL = 0.98
KINDS = (("NVIDIA H100 80GB HBM3", 81559), ("NVIDIA L40S", 46068))


@dataclass(frozen=True)
class Case:
    """One drawn fleet and what is wanted of it."""

    seed: int
    fleet: tuple[NodeInventory, ...]
    catalog: tuple[Model, ...]


def draw(seed: int) -> Case:
    """Return a fleet of 4 to 40 nodes and a catalog that wants 0.7 to 1.4 times its devices."""
    rng = random.Random(seed)
    fleet = tuple(_node(rng, index) for index in range(rng.randint(4, 40)))
    devices = sum(len(node.devices) for node in fleet)
    wanted = devices * rng.uniform(0.7, 1.4)
    catalog: list[Model] = []
    while wanted > 0:
        model = _model(rng, len(catalog))
        catalog.append(model)
        wanted -= model.replicas.min * model.profiles[0].devices.count
    return Case(seed, fleet, tuple(catalog))


def _node(rng: random.Random, index: int) -> NodeInventory:
    kind, memory_mib = rng.choice(KINDS)
    count = rng.choice([2, 4, 8, 8])
    name = f"n{index:02}"
    return values.inventory(
        name,
        devices=tuple(
            values.device(name, at, kind=kind, memory_mib=memory_mib, island="all")
            for at in range(count)
        ),
        pool=rng.choice(["default", "default", "default", "batch"]),
        fabric={"ib": f"rail{index // 8}"},
    )


def _model(rng: random.Random, index: int) -> Model:
    nodes = 2 if rng.random() < 0.05 else 1
    count = rng.choice([1, 1, 1, 2, 2, 4, 8]) if nodes == 1 else rng.choice([8, 16])
    return values.model(
        f"m{index:03}",
        values.profile(
            devices={"count": count, "memory_gib": rng.choice([30, 40, 60])},
            nodes=nodes,
            priority=rng.choice([0, 0, 1, 2, 5]),
            pool="batch" if rng.random() < 0.2 else "default",
            parallel={"tensor": count},
        ),
        replicas={"min": rng.choice([1, 1, 2, 3])},
    )


def value_of(model: Model) -> int:
    """Return what one replica is worth: its devices, times its priority counted from one."""
    profile = model.profiles[0]
    return profile.devices.count * (profile.priority + 1)


def placed_value(case: Case) -> int:
    """Return what the planner's placement is worth."""
    engines = {values.ENGINE: Engine(traits=EngineTraits())}
    found = rehearse(case.fleet, case.catalog, policy=Pack(), engines=engines, losses=False)
    models = {model.name: model for model in case.catalog}
    return sum(value_of(models[action.model]) for action in found.placed)


def _places(case: Case, model: Model) -> Iterator[int]:
    """Yield the nodes, by index, that could take one shard of the model if they were empty."""
    profile = model.profiles[0]
    per_node = profile.devices.count // profile.nodes
    for index, node in enumerate(case.fleet):
        memory_mib = node.devices[0].memory_mib or 0
        fits = memory_mib >= (profile.devices.memory_gib or 0) * 1024
        if node.pool == profile.pool and fits and len(node.devices) >= per_node:
            yield index


def bound(case: Case, limit_s: float) -> float:
    """Return what no placement can be worth more than, as proven within the limit."""
    problem = cp_model.CpModel()
    used: list[list[tuple[int, cp_model.IntVar]]] = [[] for _ in case.fleet]
    worth = []
    for model in case.catalog:
        profile = model.profiles[0]
        per_node = profile.devices.count // profile.nodes
        for copy in range(model.replicas.min):
            placed = problem.new_bool_var(f"{model.name}.{copy}")
            worth.append(value_of(model) * placed)
            groups: dict[str, list[cp_model.IntVar]] = {}
            for index in _places(case, model):
                here = problem.new_bool_var(f"{model.name}.{copy}@{index}")
                used[index].append((per_node, here))
                group = case.fleet[index].fabric["ib"] if profile.nodes > 1 else "any"
                groups.setdefault(group, []).append(here)
            chosen = []
            for group, here_of_group in groups.items():
                taken = problem.new_bool_var(f"{model.name}.{copy}/{group}")
                problem.add(sum(here_of_group) == profile.nodes * taken)
                chosen.append(taken)
            problem.add(sum(chosen) == placed)
    for index, node in enumerate(case.fleet):
        problem.add(sum(count * here for count, here in used[index]) <= len(node.devices))
    problem.maximize(sum(worth))
    solver = cp_model.CpSolver()
    # Its own measure of work, about a second each: a busy machine proves no less.
    solver.parameters.max_deterministic_time = limit_s
    solver.parameters.num_workers = 2
    solver.solve(problem)
    return float(solver.best_objective_bound)


def main() -> int:
    """Print one line per case and the whole; 1 if the goal is missed."""
    cases, limit_s = (float(word) for word in (*sys.argv[1:3], "200", "30")[:2])
    reached = possible = 0.0
    worst = 1.0
    for seed in range(int(cases)):
        case = draw(seed)
        began = time.monotonic()
        ours = placed_value(case)
        took_s = time.monotonic() - began
        best = bound(case, limit_s)
        reached, possible = reached + ours, possible + best
        share = ours / best if best else 1.0
        worst = min(worst, share)
        click.echo(
            f"{seed:3} {len(case.fleet):2} nodes {share:7.2%} planned in {took_s * 1e3:.0f} ms"
        )
    click.echo(f"whole {reached / possible:.2%}, worst case {worst:.2%}, goal {GOAL:.0%}")
    return 0 if reached / possible >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
