"""`llmgw config`: is a file right, what is in force and why, what may be written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from llmgw import logs
from llmgw.cli.tables import aligned
from llmgw.config.display import shown_settings
from llmgw.config.loading import load_server
from llmgw.config.schema import catalog_schema, server_schema
from llmgw.plugins import load_registry

_FILE = click.Path(path_type=Path)


@click.group()
def config() -> None:
    """Check, show and describe the configuration of a server."""
    logs.configure()


@config.command()
@click.argument("file", type=_FILE)
def check(file: Path) -> None:
    """Say everything that is wrong in FILE; needs no GPU, network or server.

    Exits with 0 if a server would start with it, else with 2.

    \b
    Example:
        llmgw config check llmgw.yaml
    """
    loaded = load_server(file, os.environ, {}, installed=load_registry().installed)
    counts = [
        f"{len(found)} {word}{'' if len(found) == 1 else 's'}"
        for word, found in (
            ("model", loaded.settings.models),
            ("endpoint", loaded.settings.endpoints),
        )
        if found
    ]
    click.echo(f"{file}: ok" + (f" ({', '.join(counts)})" if counts else ""))


@config.command()
@click.option(
    "--config", "file", type=_FILE, envvar="LLMGW_CONFIG", help="YAML or TOML file of the server."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(file: Path | None, as_json: bool) -> None:
    """Print every setting in force and where it came from; secrets are masked.

    \b
    Example:
        llmgw config show --config llmgw.yaml
    """
    loaded = load_server(
        file, os.environ, {}, installed=load_registry().installed, needs_work=False
    )
    rows = shown_settings(loaded)
    if as_json:
        data = {row.path: {"value": row.value, "origin": row.origin} for row in rows}
        click.echo(json.dumps(data, indent=2))
        return
    table = [(row.path, json.dumps(row.value, ensure_ascii=False), row.origin) for row in rows]
    click.echo(aligned(("setting", "value", "from"), table))


@config.command()
@click.option("--catalog", is_flag=True, help="Describe a file of catalog_dir instead.")
def schema(catalog: bool) -> None:
    """Print the JSON Schema of the configuration, for editors.

    \b
    Example:
        llmgw config schema > llmgw.schema.json
    """
    described = catalog_schema() if catalog else server_schema(load_registry().sections)
    click.echo(json.dumps(described, indent=2))
