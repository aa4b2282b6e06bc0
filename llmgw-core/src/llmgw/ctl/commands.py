"""`llmgw ctl`: the group, and where each command is. Commands are imported when they are chosen."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from llmgw.ctl.session import Session
from llmgw.ctl.target import Wishes

_COMMANDS = {
    "status": ("fleet", "The cluster in one glance."),
    "nodes": ("fleet", "All nodes."),
    "node": ("fleet", "One node with its devices and replicas."),
    "models": ("fleet", "All models that clients may ask for."),
    "replicas": ("fleet", "All replicas, with the causes of failures."),
    "endpoints": ("fleet", "Where this server's router sends requests."),
    "explain": ("fleet", "Why a model or a node is not as it should be."),
    "route": ("fleet", "What the router would do with a request now, and why."),
    "plan": ("catalog", "What a file would change, without changing it."),
    "apply": ("catalog", "Put the models of a file into the catalog."),
    "diff": ("catalog", "How a file and the catalog differ."),
    "get": ("catalog", "One model's entry as YAML."),
    "export": ("catalog", "The whole catalog as YAML."),
    "delete": ("catalog", "Remove a model: withdrawn, drained, stopped."),
    "history": ("catalog", "Who changed what in the catalog."),
    "rollback": ("catalog", "Take the catalog back to a version."),
    "retry": ("catalog", "Try again at once what of a model has failed."),
    "drain": ("nodes", "Move a node's replicas away."),
    "cordon": ("nodes", "Give a node no new replica."),
    "uncordon": ("nodes", "Take back a cordon or a drain."),
    "fence": ("nodes", "Vouch that nothing runs on a node."),
    "revoke": ("nodes", "Refuse a node, whatever certificate it has."),
    "readmit": ("nodes", "Take a revocation back."),
    "forget": ("nodes", "Forget a node that will not come back."),
    "logs": ("nodes", "Logs of a node, of its engines, or of the server."),
    "weights": ("nodes", "Weights on a node: list, pull, remove."),
    "engines": ("nodes", "Engines on a node: list, install, remove."),
    "events": ("history", "What happened, and who did it."),
    "usage": ("history", "Requests and tokens by key and model."),
    "keys": ("access", "API keys: list, create, change, revoke."),
    "tokens": ("access", "Admin tokens: list, create, revoke."),
    "join-token": ("access", "Join tokens: list, create, revoke."),
    "authority": ("access", "Replace the certificate authority, step by step."),
    "contexts": ("contexts", "Named servers: list, set, use, remove."),
    "chat": ("live", "A quick streaming chat with a model."),
    "top": ("live", "Nodes, replicas and load, again and again."),
    "watch": ("live", "Any command that only looks, again and again."),
    "completion": ("contexts", "Completion for bash, zsh or fish."),
}


class _LateGroup(click.Group):
    """Lists all commands, imports the chosen one."""

    # ruff: noqa: ARG002 - click's signatures

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"llmgw.ctl.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


@click.group(cls=_LateGroup)
@click.option(
    "--server",
    envvar="LLMGW_SERVER",
    metavar="URL",
    help="Admin address of a server.  [default: http://127.0.0.1:8081]",
)
@click.option(
    "--token", envvar="LLMGW_TOKEN", help="Admin token; better from a file or the environment."
)
@click.option(
    "--token-file",
    envvar="LLMGW_TOKEN_FILE",
    type=click.Path(path_type=Path),
    help="File with the admin token.  [default: the one of a server on this machine]",
)
@click.option(
    "--server-ca",
    envvar="LLMGW_SERVER_CA",
    type=click.Path(path_type=Path),
    help="PEM file of who vouches for the server's certificate.  [default: the machine's own roots]",
)
@click.option("--context", envvar="LLMGW_CONTEXT", help="A named server (`llmgw ctl contexts`).")
@click.option("--json", "as_json", is_flag=True, help="Print the API's reply untouched.")
@click.pass_context
def ctl(
    ctx: click.Context,
    server: str | None,
    token: str | None,
    token_file: Path | None,
    server_ca: Path | None,
    context: str | None,
    as_json: bool,
) -> None:
    """Look at a running cluster, and change it.

    \b
    Exit codes: 0 done, 1 failed or refused, 2 wrong usage or settings, 130 interrupted.

    \b
    Example:
      llmgw ctl status
      llmgw ctl --server https://gw.example:8081 --token-file ops.token nodes
    """
    wishes = Wishes(
        server=server, token=token, token_file=token_file, server_ca=server_ca, context=context
    )
    # A caller that brings a session of its own (tests) keeps it.
    session = ctx.obj = ctx.obj or Session(wishes, as_json=as_json)
    ctx.call_on_close(session.close)
