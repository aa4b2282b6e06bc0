"""`llmgw plugins`: what each installed package supplies, or why it failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import click

from llmgw.cli.tables import aligned
from llmgw.errors import PluginConflictError
from llmgw.plugins import (
    FoundPlugin,
    LoadedPlugin,
    Registry,
    installed_plugins,
    load_plugins,
)

_KINDS = {
    "llmgw_engine_adapters": "engine",
    "llmgw_placement_policies": "policy",
    "llmgw_balancers": "balancer",
    "llmgw_hardware_probes": "probe",
    "llmgw_weight_sources": "weights",
}
_LATE = {
    "llmgw_dispatchers": "dispatchers",
    "llmgw_sinks": "sinks",
    "llmgw_lease_stores": "lease stores",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRow:
    """One entry point, as `--json` prints it."""

    distribution: str
    version: str
    entry: str
    ok: bool
    supplies: Mapping[str, list[str]] = field(default_factory=dict)  #: names by kind
    late: list[str] = field(default_factory=list)  #: hooks answered when settings are known
    reason: str | None = None  #: why it is not used


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def plugins(ctx: click.Context, as_json: bool) -> None:
    """List installed plugins: what they supply, or why they failed to load.

    Exits with 1 if any failed.

    \b
    Example:
        llmgw plugins
    """
    rows, conflict = plugin_rows(installed_plugins())
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        table = [
            (row.distribution, row.version, row.entry, "ok" if row.ok else "failed", _summary(row))
            for row in rows
        ]
        click.echo(aligned(("distribution", "version", "entry", "state", "supplies"), table))
    if conflict:
        raise conflict
    ctx.exit(0 if all(row.ok for row in rows) else 1)


def plugin_rows(
    found: tuple[FoundPlugin, ...],
) -> tuple[list[PluginRow], PluginConflictError | None]:
    """Return a row per entry point, and the conflict between them if there is one."""
    loaded, failures = load_plugins(found)
    used = {(plugin.distribution, plugin.entry): plugin for plugin in loaded}
    failed = {(failure.distribution, failure.entry): failure.reason for failure in failures}
    rows = [
        PluginRow(
            distribution=plugin.distribution,
            version=plugin.version,
            entry=plugin.entry,
            ok=key in used,
            supplies=_supplies(used[key]) if key in used else {},
            late=[_LATE[hook] for hook in used[key].late] if key in used else [],
            reason=failed.get(key),
        )
        for plugin in found
        for key in [(plugin.distribution, plugin.entry)]
    ]
    try:
        Registry.of(loaded, failures)
    except PluginConflictError as error:
        return rows, error
    return rows, None


def _supplies(plugin: LoadedPlugin) -> dict[str, list[str]]:
    supplies = {_KINDS[hook]: sorted(named) for hook, named in plugin.objects.items() if named}
    if plugin.sections:
        supplies["settings"] = sorted(plugin.sections)
    return supplies


def _summary(row: PluginRow) -> str:
    if not row.ok:
        return str(row.reason)
    parts = [f"{kind}: {', '.join(names)}" for kind, names in row.supplies.items()]
    return "; ".join([*parts, *row.late])
