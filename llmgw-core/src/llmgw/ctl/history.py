"""What happened, and what was used."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from llmgw.ctl.nodes import Duration
from llmgw.ctl.session import CtlCommand, Session, pass_session


@click.command(
    cls=CtlCommand,
    examples=[
        "llmgw ctl events -n 20",
        "llmgw ctl events --subject 'node gpu-01'",
        "llmgw ctl events -f",
    ],
)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--subject", help="Of this only, such as `node gpu-01`.")
@click.option("-f", "--follow", is_flag=True, help="Go on with new ones, until Ctrl-C.")
@pass_session
def events(session: Session, limit: int, subject: str | None, follow: bool) -> None:
    """What happened and who did it, oldest first."""
    raw = session.client.get("/events", limit=limit, subject=subject)
    found = json.loads(raw)["events"]
    session.show(raw, lambda: "\n".join(_event_line(item) for item in reversed(found)))
    if not follow:
        return
    after = found[0]["id"] if found else None
    with session.client.stream("/events/follow", after=after) as lines:
        for line in filter(None, lines):
            event = json.loads(line)
            if subject in (None, event["subject"]):
                click.echo(line if session.as_json else _event_line(event))


def _event_line(event: dict[str, Any]) -> str:
    from llmgw.ctl.render import plain

    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"]))
    text = f"{stamp}  {event['kind']}  {event['subject']}  {event['message']}  ({event['who']})"
    return plain(text)


@click.command(
    cls=CtlCommand,
    examples=[
        "llmgw ctl usage",
        "llmgw ctl usage --by key,day --since 7d",
        "llmgw ctl usage --model llama",
    ],
)
@click.option("--by", default="key,model", show_default=True, help="Of key, model, day, hour.")
@click.option("--since", type=Duration(), default="30d", show_default=True, help="How far back.")
@click.option("--key", help="Of this key's id only.")
@click.option("--model", help="Of this model only.")
@pass_session
def usage(session: Session, by: str, since: float, key: str | None, model: str | None) -> None:
    """Requests and tokens."""
    from llmgw.adminapi.history import UsageReply

    raw = session.client.get("/usage", by=by, since=time.time() - since, key=key, model=model)

    def text(reply: UsageReply) -> str:
        from llmgw.ctl.render import table

        return table(
            ["FROM", "KEY", "MODEL", "REQUESTS", "FAILED", "PROMPT", "CACHED", "COMPLETION"],
            (
                [
                    None
                    if row.start_at is None
                    else time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(row.start_at)),
                    row.key_name or row.key,
                    row.model,
                    row.requests,
                    row.failed,
                    row.prompt_tokens,
                    row.cached_tokens,
                    row.completion_tokens,
                ]
                for row in reply.rows
            ),
        )

    session.show_reply(raw, UsageReply, text)
