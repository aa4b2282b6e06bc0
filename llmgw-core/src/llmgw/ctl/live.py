"""What runs until Ctrl-C: a chat, and looks at the cluster again and again."""

from __future__ import annotations

import io
import json
import os
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import click

from llmgw.ctl.nodes import Duration
from llmgw.ctl.session import CtlCommand, Session, pass_session
from llmgw.ctl.target import Target, find_target
from llmgw.errors import RequestError, TransientError

_API_PORT = 8080


@click.command(
    cls=CtlCommand,
    has_reply=False,
    examples=["llmgw ctl chat smollm2", "echo 'Say hello.' | llmgw ctl chat smollm2"],
)
@click.argument("model")
@click.argument("prompt", required=False)
@click.option(
    "--api",
    envvar="LLMGW_API",
    metavar="URL",
    help="API address.  [default: port 8080 of the server]",
)
@click.option("--api-key", envvar="LLMGW_API_KEY", help="API key, where the server asks for one.")
@pass_session
def chat(
    session: Session, model: str, prompt: str | None, api: str | None, api_key: str | None
) -> None:
    """Chat with MODEL, streamed; with PROMPT, or input from a pipe, ask once."""
    from llmgw.ctl.client import trust_of

    target = find_target(session.wishes, os.environ)
    base = (api or _api_of(target)).rstrip("/")
    trust = trust_of(target)
    once = prompt or (None if sys.stdin.isatty() else sys.stdin.read())
    messages: list[dict[str, str]] = []
    while text := (once or _next_line()):
        messages.append({"role": "user", "content": text})
        answer = ""
        for piece in _stream(base, model, messages, api_key, trust):
            answer += piece
            click.echo(_clean(piece), nl=False)
        click.echo()
        messages.append({"role": "assistant", "content": answer})
        if once:
            return


def _next_line() -> str:
    try:
        line: str = click.prompt("", prompt_suffix="> ", default="", show_default=False, err=True)
    except click.Abort:
        return ""
    return line


def _api_of(target: Target) -> str:
    parts = urlsplit(target.server)
    host = parts.hostname or "127.0.0.1"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{_API_PORT}"


def _stream(
    base: str,
    model: str,
    messages: list[dict[str, str]],
    api_key: str | None,
    trust: ssl.SSLContext,
) -> Iterator[str]:
    import httpx

    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    body = {"model": model, "messages": messages, "stream": True}
    try:
        with httpx.stream(
            "POST",
            f"{base}/v1/chat/completions",
            json=body,
            headers=headers,
            timeout=httpx.Timeout(600.0, connect=5.0),
            trust_env=False,
            verify=trust,
        ) as response:
            if response.is_error:
                response.read()
                raise RequestError(_reason(response.text), status=response.status_code)
            for line in response.iter_lines():
                yield from _pieces(line)
    except httpx.HTTPError as error:
        raise TransientError(
            f"{base} cannot be reached ({error}); name the API's address by --api URL"
        ) from None


def _pieces(line: str) -> Iterator[str]:
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or data == "[DONE]":
        return
    event: dict[str, Any] = json.loads(data)
    if "error" in event:
        raise RequestError(_reason(data), status=502)
    for choice in event.get("choices", ()):
        if content := choice.get("delta", {}).get("content"):
            yield content


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "the answer is no answer of an OpenAI API"


@click.command(
    cls=CtlCommand, has_reply=False, examples=["llmgw ctl top", "llmgw ctl top --every 5s"]
)
@click.option(
    "--every", type=Duration(), default="2s", show_default=True, help="Between two looks."
)
@pass_session
def top(session: Session, every: float) -> None:
    """Status, nodes, models and replicas, again and again, until Ctrl-C."""

    def look() -> str:
        from llmgw.adminapi.fleet import ModelsReply, NodesReply, ReplicasReply, StatusReply
        from llmgw.ctl.fleet import models_table, nodes_table, replicas_table, status_text

        client = session.client
        parts = [status_text(client.read(StatusReply, "/status"))]
        parts.append(models_table(client.read(ModelsReply, "/models").models))
        try:
            parts.append(nodes_table(client.read(NodesReply, "/nodes").nodes))
            parts.append(replicas_table(client.read(ReplicasReply, "/replicas").replicas))
        except RequestError as error:
            if error.code != "not_available":
                raise
        return "\n\n".join(parts)

    _again_and_again(look, every)


@click.command(
    cls=CtlCommand,
    context_settings={"ignore_unknown_options": True},
    examples=["llmgw ctl watch replicas", "llmgw ctl watch --every 10s node gpu-01"],
)
@click.option(
    "--every", type=Duration(), default="2s", show_default=True, help="Between two looks."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def watch(ctx: click.Context, every: float, command: tuple[str, ...]) -> None:
    """Any command of ctl that only looks, again and again, until Ctrl-C."""
    group = ctx.parent.command if ctx.parent else None
    session = ctx.ensure_object(Session)
    chosen = group.get_command(ctx, command[0]) if isinstance(group, click.Group) else None
    if chosen is None or command[0] in ("watch", "top", "chat"):
        raise click.UsageError(f"{command[0]!r} is no command of ctl that can be watched")
    session.client.only_looks = True  # or a typing error would change something again and again

    def look() -> str:
        import contextlib

        printed = Screen()
        with contextlib.redirect_stdout(printed):
            chosen.main(list(command[1:]), prog_name=command[0], standalone_mode=False, obj=session)
        return printed.getvalue().rstrip()

    _again_and_again(look, every)


class Screen(io.StringIO):
    """Takes what a command prints, and is a terminal where the real one is: tables are fitted."""

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


def _again_and_again(look: Callable[[], str], every_s: float) -> None:
    while True:
        try:
            text = look()
        except TransientError as error:
            text = str(error)  # a server that restarts is no reason to stop watching
        if sys.stdout.isatty():
            click.clear()
        click.echo(text)
        if not sys.stdout.isatty():
            click.echo()
        time.sleep(every_s)


def _clean(text: str) -> str:
    from llmgw.ctl.render import plain

    return plain(text)
