"""API keys, admin tokens and join tokens. A secret appears once, in the reply to its making."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from llmgw.adminapi.reply import WHOLE, Reply, Request

Name = Annotated[str, Field(min_length=1, max_length=200)]
Lifetime = Annotated[float, Field(gt=0, le=3.2e9)]
Limit = Annotated[int, Field(ge=1, le=2**53), WHOLE]


class KeyLimitsBody(Request):
    """What one key may use. null: not limited."""

    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    concurrent_requests: Limit | None = None
    tokens_per_day: Limit | None = None
    tokens_per_month: Limit | None = None


class KeyRequest(Request):
    """An API key to make."""

    name: Name
    models: tuple[str, ...] | None = None
    """null: every model."""
    limits: KeyLimitsBody = KeyLimitsBody()
    lifetime_s: Lifetime | None = None


class KeyChangeRequest(Request):
    """What a key may use from now on."""

    models: tuple[str, ...] | None = None
    limits: KeyLimitsBody = KeyLimitsBody()


class KeyReply(Reply):
    id: str
    name: str
    models: tuple[str, ...] | None = None
    limits: KeyLimitsBody = KeyLimitsBody()
    created_at: float
    created_by: str
    expires_at: float | None = None
    revoked_at: float | None = None
    usable: bool


class NewKeyReply(KeyReply):
    secret: str
    """The key itself; it cannot be shown again."""


class KeysReply(Reply):
    keys: tuple[KeyReply, ...]
    next: str | None = None


class TokenRequest(Request):
    """An admin token to make."""

    name: Name
    role: Literal["viewer", "operator", "admin"] = "viewer"
    lifetime_s: Lifetime | None = None


class TokenReply(Reply):
    id: str
    name: str
    role: str
    created_at: float
    created_by: str
    expires_at: float | None = None
    revoked_at: float | None = None
    usable: bool


class NewTokenReply(TokenReply):
    secret: str


class TokensReply(Reply):
    tokens: tuple[TokenReply, ...]
    next: str | None = None


class JoinTokenRequest(Request):
    """A join token to make."""

    pool: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] | None = None
    """Nodes are bound to it; null: they choose."""
    uses: Annotated[int, Field(ge=1, le=100_000), WHOLE] | None = 1
    """null: not limited."""
    lifetime_s: Lifetime = 1800.0


class JoinTokenReply(Reply):
    id: str
    pool: str | None = None
    uses_left: int | None = None
    local_only: bool = False
    created_at: float
    created_by: str
    expires_at: float | None = None
    revoked_at: float | None = None
    usable: bool


class NewJoinTokenReply(JoinTokenReply):
    secret: str


class JoinTokensReply(Reply):
    tokens: tuple[JoinTokenReply, ...]
    next: str | None = None


class AuthorityReply(Reply):
    """The cluster's certificate authorities, by the pins of their keys."""

    pin: str
    """Of the one that issues; agents check it when they join."""
    trusted: tuple[str, ...]
    """All in force; more than one while one replaces the other."""


class WhoReply(Reply):
    """Who the server takes the caller for."""

    name: str
    role: str
