"""Which commands there are, without importing any.

`llmgw --help` has 300 ms; pydantic, SQLAlchemy or gRPC alone take longer.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib import metadata

import click

from llmgw.contracts.cli import COMMAND_GROUP
from llmgw.errors import PluginError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One command of ours."""

    target: str  #: `module:attribute`, or the name of an entry point of `package`
    help: str
    package: str = "llmgw-core"


COMMANDS = {
    "up": Row(
        target="llmgw.cli.up.command:up",
        help="Serve a model on this machine: server and agent in one terminal.",
    ),
    "server": Row(
        target="llmgw.cli.server:server",
        help="Run the control plane and a router: the one endpoint.",
    ),
    "router": Row(
        target="llmgw.cli.router:router", help="Run a router alone, fed by one or more servers."
    ),
    "agent": Row(target="agent", help="Run the agent of this node.", package="llmgw-agent"),
    "ctl": Row(target="llmgw.ctl.commands:ctl", help="Look at a running cluster, and change it."),
    "config": Row(
        target="llmgw.cli.config:config", help="Check, show and describe the configuration."
    ),
    "plugins": Row(
        target="llmgw.cli.plugins:plugins", help="List what is installed, and what failed to load."
    ),
    "service": Row(
        target="llmgw.cli.service.command:service",
        help="Write systemd units for server and agent, and a node's firewall.",
    ),
    "store": Row(target="llmgw.cli.store:store", help="Look after the database of a server."),
    "debug": Row(
        target="llmgw.cli.debug.command:debug",
        help="Gather what helps to find a fault in one file.",
    ),
    "simulate": Row(
        target="llmgw.simulate.command:simulate",
        help="Run a whole fleet on a virtual clock.",
    ),
}


def load_command(name: str) -> click.Command | None:
    """Import and return a command; None if there is none of this name.

    Raises click.UsageError naming the package to install for one that is known but absent.
    """
    row = COMMANDS.get(name)
    if row is not None and ":" in row.target:
        module, _, attribute = row.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command
    for entry in _entries(name):
        return _loaded(entry)
    if row is not None:
        raise click.UsageError(
            f"`llmgw {name}` is in the package {row.package}, which is not installed: "
            f"pip install {row.package}"
        )
    return None


def help_lines() -> dict[str, str]:
    """Return a help line for every command, ours first, those of other packages by name."""
    lines = {name: row.help for name, row in COMMANDS.items()}
    for entry in sorted(_entries(), key=lambda one: one.name):
        if entry.name not in lines:
            summary = entry.dist.metadata["Summary"] if entry.dist else ""
            lines[entry.name] = f"{summary} ({entry.dist.name})" if entry.dist else summary
    return lines


def _loaded(entry: metadata.EntryPoint) -> click.Command:
    owner = entry.dist.name if entry.dist else "unknown"
    try:
        command = entry.load()
    except Exception as error:  # another package's code may raise anything
        what = f"{type(error).__name__}: {error}"
        raise PluginError(
            f"`llmgw {entry.name}` of {owner} failed to load: {what}", distribution=owner
        ) from error
    if not isinstance(command, click.Command):
        raise PluginError(
            f"`llmgw {entry.name}` of {owner} is no click command", distribution=owner
        )
    return command


def _entries(name: str | None = None) -> metadata.EntryPoints:
    found = metadata.entry_points(group=COMMAND_GROUP)
    return found.select(name=name) if name else found
