"""Named servers, and completion of shells."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from llmgw.ctl.session import CtlCommand, ListingGroup, Session, pass_session
from llmgw.ctl.target import contexts_file, read_contexts, write_contexts
from llmgw.errors import ConfigError, Problem


@click.group(cls=ListingGroup)
def contexts() -> None:
    """Named servers, for several clusters."""


@contexts.command("list", cls=CtlCommand, examples=["llmgw ctl contexts list"])
@pass_session
def list_contexts(session: Session) -> None:
    """All contexts; the current one is marked."""
    known, current = read_contexts(contexts_file(os.environ))

    def text() -> str:
        from llmgw.ctl.render import table

        return table(
            ["CONTEXT", "SERVER", "TOKEN FILE", "SERVER CA", "CURRENT"],
            (
                [
                    name,
                    *(value.get(key) for key in ("server", "token_file", "server_ca")),
                    name == current,
                ]
                for name, value in known.items()
            ),
        )

    session.show(json.dumps({"current": current, "contexts": known}), text)


@contexts.command(
    "set",
    cls=CtlCommand,
    has_reply=False,
    examples=["llmgw ctl contexts set prod https://gw:8081 --token-file ~/prod.token"],
)
@click.argument("name")
@click.argument("url")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with its admin token.")
@click.option(
    "--server-ca",
    type=click.Path(path_type=Path),
    help="PEM file of who vouches for its certificate.  [default: the machine's own roots]",
)
def set_context(name: str, url: str, token_file: Path | None, server_ca: Path | None) -> None:
    """Name the server at URL. The first one becomes the current one."""
    path = contexts_file(os.environ)
    known, current = read_contexts(path)
    files = {"token_file": token_file, "server_ca": server_ca}
    kept = {key: str(file.expanduser().absolute()) for key, file in files.items() if file}
    write_contexts(path, {**known, name: {"server": url, **kept}}, current or name)


@contexts.command("use", cls=CtlCommand, has_reply=False, examples=["llmgw ctl contexts use prod"])
@click.argument("name")
def use_context(name: str) -> None:
    """Make NAME the current context."""
    path = contexts_file(os.environ)
    known, _ = read_contexts(path)
    _require(name, known)
    write_contexts(path, known, name)


@contexts.command(
    "remove", cls=CtlCommand, has_reply=False, examples=["llmgw ctl contexts remove prod"]
)
@click.argument("name")
def remove_context(name: str) -> None:
    """Forget NAME."""
    path = contexts_file(os.environ)
    known, current = read_contexts(path)
    _require(name, known)
    left = {key: value for key, value in known.items() if key != name}
    write_contexts(path, left, None if current == name else current)


def _require(name: str, known: dict[str, dict[str, object]]) -> None:
    if name not in known:
        message = f"there is no context {name!r}; known: {', '.join(sorted(known)) or 'none'}"
        raise ConfigError("contexts", [Problem(path="", message=message)])


@click.command(
    cls=CtlCommand,
    has_reply=False,
    examples=["llmgw ctl completion bash > ~/.local/share/bash-completion/completions/llmgw"],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of `llmgw` for SHELL."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion is known for {shell}")
    program = ctx.find_root().command
    click.echo(kind(program, {}, "llmgw", "_LLMGW_COMPLETE").source())
