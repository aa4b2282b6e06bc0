"""`llmgw agent`: the flags of the node's agent. What runs is `llmgw_agent.node.app`'s business."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import click


@click.group(invoke_without_command=True)
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="YAML or TOML file.")
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="HOST:PORT[,…]",
    help="Every server of the cluster (IPv6 in brackets), or unix:/PATH; may be given again.",
)
@click.option("--node-id", metavar="NAME", help="This node's name; default: the host's.")
@click.option(
    "--state-dir", type=click.Path(path_type=Path), help="Folder that everything lies below."
)
@click.option("--pool", help="The part of the fleet that this node belongs to.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="May be given again.")
@click.option(
    "--fabric",
    multiple=True,
    metavar="KEY=VALUE",
    help="A fast link that cannot be detected, e.g. ib=rail-1; may be given again.",
)
@click.option(
    "--data-address", metavar="IP", help="Where engines listen; default: this machine only."
)
@click.option(
    "--join",
    metavar="TOKEN|@FILE",
    help="From `llmgw ctl join-token create`. Not needed beside a server of the same user.",
)
@click.option("--rejoin", is_flag=True, help="Leave the cluster this node belongs to for another.")
@click.option(
    "--weights-root",
    "weights_roots",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Folder that `path:` weights may lie in; may be given again.",
)
@click.option(
    "--machine",
    metavar="NAME",
    help="For one of several agents of a host with devices and ports of its own.",
)
@click.option(
    "--lock-folder",
    type=click.Path(path_type=Path),
    help="Where all agents of this host find each other's device locks.",
)
@click.option("--stop-engines", is_flag=True, help="End all engines when the agent is stopped.")
@click.option("--log-level", help="debug, info, warning or error.")
@click.option("--log-format", help="text or json.")
@click.pass_context
def agent(
    ctx: click.Context,
    config_file: Path | None,
    servers: tuple[str, ...],
    node_id: str | None,
    state_dir: Path | None,
    pool: str | None,
    labels: tuple[str, ...],
    fabric: tuple[str, ...],
    data_address: str | None,
    join: str | None,
    rejoin: bool,
    weights_roots: tuple[Path, ...],
    machine: str | None,
    lock_folder: Path | None,
    stop_engines: bool,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Run the agent of this node: it starts engines as servers say, and keeps them running.

    Flags beat LLMGW_AGENT__… variables, which beat the file. Engines go on when the agent stops,
    and are taken over when it comes back.

    \b
    Examples:
        llmgw agent --server 10.0.0.1:8082 --join @token
        llmgw agent status
    """
    from llmgw_agent.settings import load_agent  # `--help` needs none of it

    flags: dict[str, object] = {
        "servers": _parts(servers),
        "node_id": node_id,
        "state_dir": str(state_dir.absolute()) if state_dir else None,
        "pool": pool,
        "labels": _pairs("--label", labels),
        "fabric": _pairs("--fabric", fabric),
        "data_address": data_address,
        "join": join,
        "rejoin": rejoin or None,
        "weights_roots": [str(path.absolute()) for path in weights_roots] or None,
        "machine": machine,
        "lock_folder": str(lock_folder.absolute()) if lock_folder else None,
        "stop_engines": stop_engines or None,
        "log": {
            key: value
            for key, value in (("level", log_level), ("format", log_format))
            if value is not None
        },
    }
    given = {key: value for key, value in flags.items() if value not in (None, [], {})}
    ctx.obj = load_agent(config_file, os.environ, given)
    if ctx.invoked_subcommand is None:
        from llmgw_agent.wire.quiet import quiet_grpc

        quiet_grpc()
        from llmgw_agent.node.app import run_agent

        try:
            run_agent(ctx.obj)
        except BaseExceptionGroup as group:
            raise _plain(group) from None


@agent.command()
@click.option("--json", "as_json", is_flag=True, help="All of it, for programs.")
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show this node as its agent sees it; needs no server, nor a running agent.

    \b
    Examples:
        llmgw agent status
        llmgw agent --state-dir /var/lib/llmgw/agent status --json
    """
    import msgspec

    from llmgw_agent.node.app import state_dir_of
    from llmgw_agent.node.status import read_status
    from llmgw_agent.render import status_text

    found = read_status(state_dir_of(ctx.obj))
    click.echo(msgspec.json.encode(found) if as_json else status_text(found, time.time()))


def _plain(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one error that a person can act on, out of the tasks that it came through."""
    from llmgw.errors import LlmgwError

    expected = group.subgroup(LlmgwError)
    while expected is not None:
        first = expected.exceptions[0]
        if not isinstance(first, BaseExceptionGroup):
            return first
        expected = first
    return group


def _parts(lists: Iterable[str]) -> list[str]:
    return [part.strip() for text in lists for part in text.split(",") if part.strip()]


def _pairs(flag: str, texts: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.UsageError(f"{flag} must be KEY=VALUE, got {text!r}")
        pairs[key] = value
    return pairs
