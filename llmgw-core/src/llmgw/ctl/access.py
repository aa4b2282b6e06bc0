"""What opens which door: keys, tokens, join tokens, the authority."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from llmgw.ctl.nodes import Duration
from llmgw.ctl.session import CtlCommand, ListingGroup, Session, pass_session
from llmgw.errors import PermanentError

if TYPE_CHECKING:
    from llmgw.adminapi.access import KeyReply, TokenReply


@click.group(cls=ListingGroup)
def keys() -> None:
    """API keys: who may send requests to which models."""


@keys.command("list", cls=CtlCommand, examples=["llmgw ctl keys list"])
@pass_session
def list_keys(session: Session) -> None:
    """All API keys, ended ones too."""
    from llmgw.adminapi.access import KeysReply

    raw = session.client.get("/keys")

    def text(reply: KeysReply) -> str:
        from llmgw.ctl.render import age, table

        now = time.time()
        return table(
            ["KEY", "NAME", "MODELS", "LIMITS", "AGE", "ENDS", "USABLE"],
            (
                [
                    key.id,
                    key.name,
                    "all" if key.models is None else key.models,
                    [f"{name}={value}" for name, value in key.limits if value is not None],
                    age(key.created_at, now),
                    None if key.expires_at is None else age(key.expires_at, now),
                    key.usable,
                ]
                for key in reply.keys
            ),
        )

    session.show_reply(raw, KeysReply, text)


def _limit_options(function: Any) -> Any:
    """Add the options that say what a key may use."""
    for option, text in (
        ("--tokens-per-month", "Tokens in a calendar month, UTC."),
        ("--tokens-per-day", "Tokens in a day, UTC."),
        ("--concurrent", "Requests at a time."),
        ("--tokens-per-minute", "Tokens in a minute."),
        ("--requests-per-minute", "Requests in a minute."),
    ):
        function = click.option(option, type=click.IntRange(min=1), help=text)(function)
    return click.option(
        "--model", "models", multiple=True, help="May use this model; repeatable. None given: all."
    )(function)


def _what(models: tuple[str, ...], limits: dict[str, int | None]) -> dict[str, Any]:
    limits["concurrent_requests"] = limits.pop("concurrent")
    return {"models": models or None, "limits": limits}


@keys.command(
    cls=CtlCommand, examples=["llmgw ctl keys create ci --model llama3 --requests-per-minute 60"]
)
@click.argument("name")
@click.option("--lifetime", type=Duration(), help="Ends by itself after this long.")
@_limit_options
@pass_session
def create(
    session: Session,
    /,
    name: str,
    lifetime: float | None,
    models: tuple[str, ...],
    **limits: int | None,
) -> None:
    """Make a key for NAME. The key is printed now and can never be shown again."""
    body = {"name": name, "lifetime_s": lifetime, **_what(models, limits)}
    _show_secret(session, session.client.send("POST", "/keys", body))


@keys.command(
    cls=CtlCommand, examples=["llmgw ctl keys change 3f2a9c01b7de --tokens-per-day 100000"]
)
@click.argument("key_id", metavar="KEY")
@_limit_options
@pass_session
def change(session: Session, /, key_id: str, models: tuple[str, ...], **limits: int | None) -> None:
    """Replace what KEY, an id or a name, may use, all of it: what is not given is not limited."""
    key_id = _key_id(session, key_id)
    raw = session.client.send("PUT", f"/keys/{key_id}", _what(models, limits))
    session.show(raw, lambda: f"{key_id} is changed")


@keys.command(
    cls=CtlCommand, examples=["llmgw ctl keys revoke 3f2a9c01b7de", "llmgw ctl keys revoke ci"]
)
@click.argument("key_id", metavar="KEY")
@pass_session
def revoke(session: Session, key_id: str) -> None:
    """End KEY, an id or a name, for good."""
    key_id = _key_id(session, key_id)
    raw = session.client.send("DELETE", f"/keys/{key_id}")
    session.show(raw, lambda: f"{key_id} is revoked")


@click.group(cls=ListingGroup)
def tokens() -> None:
    """Admin tokens: who may look at the cluster, run it, or own it."""


@tokens.command("list", cls=CtlCommand, examples=["llmgw ctl tokens list"])
@pass_session
def list_tokens(session: Session) -> None:
    """All admin tokens, ended ones too."""
    from llmgw.adminapi.access import TokensReply

    raw = session.client.get("/tokens")

    def text(reply: TokensReply) -> str:
        from llmgw.ctl.render import age, table

        now = time.time()
        return table(
            ["TOKEN", "NAME", "ROLE", "AGE", "ENDS", "USABLE"],
            (
                [
                    token.id,
                    token.name,
                    token.role,
                    age(token.created_at, now),
                    None if token.expires_at is None else age(token.expires_at, now),
                    token.usable,
                ]
                for token in reply.tokens
            ),
        )

    session.show_reply(raw, TokensReply, text)


@tokens.command(
    "create", cls=CtlCommand, examples=["llmgw ctl tokens create grafana --role viewer"]
)
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator", "admin"]),
    default="viewer",
    show_default=True,
    help="viewer looks, operator moves work and reads logs, admin changes everything.",
)
@click.option("--lifetime", type=Duration(), help="Ends by itself after this long.")
@pass_session
def create_token(session: Session, name: str, role: str, lifetime: float | None) -> None:
    """Make a token for NAME. It is printed now and can never be shown again."""
    body = {"name": name, "role": role, "lifetime_s": lifetime}
    _show_secret(session, session.client.send("POST", "/tokens", body))


@tokens.command(
    "revoke",
    cls=CtlCommand,
    examples=["llmgw ctl tokens revoke 3f2a9c01b7de", "llmgw ctl tokens revoke grafana"],
)
@click.argument("token_id", metavar="TOKEN")
@pass_session
def revoke_token(session: Session, token_id: str) -> None:
    """End TOKEN, an id or a name, for good."""
    from llmgw.adminapi.access import TokensReply

    token_id = _id_of(session.client.read(TokensReply, "/tokens").tokens, token_id)
    raw = session.client.send("DELETE", f"/tokens/{token_id}")
    session.show(raw, lambda: f"{token_id} is revoked")


@click.group(cls=ListingGroup)
def join_token() -> None:
    """Join tokens: how a node becomes part of the cluster."""


@join_token.command("list", cls=CtlCommand, examples=["llmgw ctl join-token list"])
@pass_session
def list_join_tokens(session: Session) -> None:
    """All join tokens, spent ones too."""
    from llmgw.adminapi.access import JoinTokensReply

    raw = session.client.get("/join-tokens")

    def text(reply: JoinTokensReply) -> str:
        from llmgw.ctl.render import age, table

        now = time.time()
        return table(
            ["TOKEN", "POOL", "USES LEFT", "LOCAL", "AGE", "ENDS", "USABLE"],
            (
                [
                    token.id,
                    token.pool,
                    "any" if token.uses_left is None else token.uses_left,
                    token.local_only,
                    age(token.created_at, now),
                    None if token.expires_at is None else age(token.expires_at, now),
                    token.usable,
                ]
                for token in reply.tokens
            ),
        )

    session.show_reply(raw, JoinTokensReply, text)


@join_token.command(
    "create",
    cls=CtlCommand,
    examples=["llmgw ctl join-token create", "llmgw ctl join-token create --uses 8 --pool chat"],
)
@click.option("--pool", help="Binds the nodes to this pool.")
@click.option("--uses", type=click.IntRange(1, 100_000), default=1, show_default=True)
@click.option("--lifetime", type=Duration(), default="30m", show_default=True)
@pass_session
def create_join_token(session: Session, pool: str | None, uses: int, lifetime: float) -> None:
    """Make a join token. It is printed now and can never be shown again."""
    body = {"pool": pool, "uses": uses, "lifetime_s": lifetime}
    _show_secret(session, session.client.send("POST", "/join-tokens", body))


@join_token.command("revoke", cls=CtlCommand, examples=["llmgw ctl join-token revoke 3f2a9c01b7de"])
@click.argument("token_id", metavar="TOKEN")
@pass_session
def revoke_join_token(session: Session, token_id: str) -> None:
    """End TOKEN; nodes that have joined with it stay."""
    from llmgw.ctl.client import escape

    raw = session.client.send("DELETE", f"/join-tokens/{escape(token_id)}")
    session.show(raw, lambda: f"{token_id} is revoked")


@click.group(cls=ListingGroup)
def authority() -> None:
    """The cluster's certificate authority, and its replacement in three steps."""


@authority.command("list", cls=CtlCommand, examples=["llmgw ctl authority"])
@pass_session
def list_authorities(session: Session) -> None:
    """The authorities in force, by the pins of their keys."""
    _show_authority(session, session.client.get("/authority"))


@authority.command(cls=CtlCommand, examples=["llmgw ctl authority begin"])
@pass_session
def begin(session: Session) -> None:
    """Step 1: trust a second authority. Wait until every node has renewed: ten days."""
    _show_authority(session, session.client.send("POST", "/authority/begin"))


@authority.command(cls=CtlCommand, examples=["llmgw ctl authority switch"])
@pass_session
def switch(session: Session) -> None:
    """Step 2: the other one issues; again: back to the first. Wait another ten days."""
    _show_authority(session, session.client.send("POST", "/authority/switch"))


@authority.command(cls=CtlCommand, examples=["llmgw ctl authority finish --yes"])
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_session
def finish(session: Session, yes: bool) -> None:
    """Step 3: drop the old one. A node that has not renewed must join again."""
    if not yes:
        click.confirm("Has every node renewed its certificate?", abort=True, err=True)
    _show_authority(session, session.client.send("POST", "/authority/finish"))


def _key_id(session: Session, given: str) -> str:
    from llmgw.adminapi.access import KeysReply

    return _id_of(session.client.read(KeysReply, "/keys").keys, given)


def _id_of(known: Sequence[KeyReply | TokenReply], given: str) -> str:
    """Return the id, ready for a path, of the one that has this id, or this name and is usable.

    One that nobody has is returned as well: the server knows how to say that.
    """
    from llmgw.ctl.client import escape

    by_id = [secret for secret in known if secret.id == given]
    named = by_id or [secret for secret in known if secret.usable and secret.name == given]
    if len(named) > 1:
        ids = ", ".join(secret.id for secret in named)
        raise PermanentError(f"{given!r} is the name of several: {ids}; say which by its id")
    return escape(named[0].id if named else given)


def _show_authority(session: Session, raw: str) -> None:
    from llmgw.adminapi.access import AuthorityReply

    def text(reply: AuthorityReply) -> str:
        from llmgw.ctl.render import table

        rows = [[pin, pin == reply.pin] for pin in reply.trusted]
        return table(["PIN", "ISSUES"], rows)

    session.show_reply(raw, AuthorityReply, text)


def _show_secret(session: Session, raw: str) -> None:
    """Print the secret alone, so that it can be piped; what it is goes to stderr."""
    reply = json.loads(raw)
    if not session.as_json:
        click.echo(f"id {reply['id']}; keep this, it cannot be shown again:", err=True)
    session.show(raw, lambda: str(reply["secret"]))
