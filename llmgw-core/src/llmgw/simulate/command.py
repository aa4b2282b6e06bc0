"""`llmgw simulate`: what would run where, what would not and why, what a lost node would do."""

from __future__ import annotations

from pathlib import Path

import click

from llmgw.control.decide.snapshot import Engine
from llmgw.domain.plans import Refusal
from llmgw.domain.units import counted
from llmgw.errors import ConfigError, Problem
from llmgw.plugins import load_registry
from llmgw.simulate.fleetfile import read_catalog, read_fleet
from llmgw.simulate.rehearsal import Rehearsal, rehearse

_FILE = click.Path(path_type=Path)


@click.command()
@click.option("--fleet", type=_FILE, required=True, help="YAML file that describes the nodes.")
@click.option("--catalog", type=_FILE, required=True, help="YAML file with `models:`.")
@click.option("--policy", default="pack", show_default=True, help="Placement policy.")
@click.option("--awake", is_flag=True, help="Also place models that may sleep.")
def simulate(fleet: Path, catalog: Path, policy: str, awake: bool) -> None:
    """Print what would run where on a described fleet; starts nothing and needs no server.

    \b
    Example:
        llmgw simulate --fleet fleet.yaml --catalog catalog.yaml

    \b
    A fleet file:
        nodes:
          - {name: gpu, count: 4, devices: {count: 8, kind: H100, memory_gib: 80}}
    """
    registry = load_registry()
    if policy not in registry.policies:
        known = ", ".join(sorted(registry.policies))
        raise ConfigError(
            "arguments",
            [Problem(path="--policy", message=f"no policy {policy!r}; there are: {known}")],
        )
    models = read_catalog(catalog)
    asked = {(item.engine, item.version) for model in models for item in model.profiles}
    engines = {
        # On a described node, whatever version is asked for can be installed.
        name: Engine(
            traits=adapter.traits,
            installable=frozenset(
                version for engine, version in asked if engine == name and version is not None
            ),
        )
        for name, adapter in registry.engines.items()
    }
    found = rehearse(
        read_fleet(fleet, engines),
        models,
        policy=registry.policies[policy],
        engines=engines,
        awake=awake,
    )
    click.echo("\n".join(report(found)))


def report(found: Rehearsal) -> list[str]:
    """Return the lines that people read."""
    lines = [f"{counted(len(found.placed), 'replica')} would run"]
    for action in found.placed:
        places = ", ".join(
            f"{node} ({counted(len(spec.devices), 'device')})" if spec.devices else str(node)
            for node, spec in action.shards
        )
        lines.append(f"  {action.model}/{action.profile} on {places}: {action.because}")
    free = sum(found.free_devices.values())
    lines.append(f"{counted(free, 'device')} would stay free")
    if found.refused:
        lines.append(f"{counted(len(found.refused), 'model')} would run less often than wanted")
        for refusal in found.refused:
            lines += tree(refusal, 1)
    for loss in found.losses:
        lines.append(
            f"losing {loss.node}: {counted(len(loss.moved), 'replica')} would move, "
            f"{counted(len(loss.refused), 'model')} would lack one"
        )
        lines += [f"  {refusal.model}: {refusal.sentence}" for refusal in loss.refused]
    return lines


def tree(refusal: Refusal, depth: int = 0) -> list[str]:
    """Return a refusal and its parts, indented, each with its code."""
    hint = f" ({refusal.hint})" if refusal.hint else ""
    lines = [f"{'  ' * depth}{refusal.code}: {refusal.sentence}{hint}"]
    for part in refusal.parts:
        lines += tree(part, depth + 1)
    return lines
