"""API keys as the store keeps them and routers check them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from llmgw.domain.ids import ModelName

KEY_PREFIX = "llmgw"  #: a key reads `llmgw_<id>_<secret>`; ids hold no underscore


class Scope(StrEnum):
    """What a key opens. Admin tokens and node certificates are kept elsewhere on purpose."""

    INFERENCE = "inference"
    MODELS = "models"  #: the list of models, without using them


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What one key may use. None: not limited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    tokens_per_day: int | None = None  #: UTC days
    tokens_per_month: int | None = None  #: UTC months


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One key without its secret: this is what travels to routers and lies in their files."""

    id: str
    secret_hash: str  #: SHA-256 of the secret part, 64 hex digits
    name: str = ""
    scopes: tuple[Scope, ...] = (Scope.INFERENCE, Scope.MODELS)
    models: tuple[ModelName, ...] | None = None  #: names or aliases; None: every model
    limits: KeyLimits = KeyLimits()
    expires_at: float | None = None  #: Unix seconds; None: never


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpend:
    """Tokens that a key has used, as the store has summed them over all routers."""

    key: str  #: id
    day: int  #: days since 1970, UTC, that `day_tokens` belongs to
    day_tokens: int
    month: int  #: months since year 0, UTC, that `month_tokens` belongs to
    month_tokens: int
