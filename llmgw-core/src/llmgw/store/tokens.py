"""Admin tokens: who may look at the cluster, run it, or own it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import sqlalchemy as sa

from llmgw.clock import Clock
from llmgw.domain.secret import Secret
from llmgw.errors import RequestError
from llmgw.store.database import Database
from llmgw.store.schema import admin_tokens
from llmgw.store.secrets import mint

TOKEN_PREFIX = "llmgwadmin"  # noqa: S105 - the part that is no secret


class Role(StrEnum):
    """What a token may do; each includes those before it."""

    VIEWER = "viewer"  #: look
    OPERATOR = "operator"  #: move work between nodes, read logs
    ADMIN = "admin"  #: change the catalog (and with it run programs), keys, tokens

    @property
    def rank(self) -> int:
        return list(Role).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminToken:
    """A token as it is kept; the secret itself is not."""

    id: str
    name: str
    role: Role
    secret_hash: str = field(repr=False)
    created_at: float
    created_by: str
    expires_at: float | None = None
    revoked_at: float | None = None

    def usable(self, wall: float) -> bool:
        """Say whether it is in force at this time, Unix seconds."""
        return self.revoked_at is None and (self.expires_at is None or wall < self.expires_at)


class TokenRepository:
    """Admin tokens by id."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def list(self) -> tuple[AdminToken, ...]:
        """Return all tokens, revoked ones too, oldest first."""
        query = sa.select(admin_tokens).order_by(admin_tokens.c.created_at, admin_tokens.c.id)
        return self._database.read(
            lambda connection: tuple(_token(row) for row in connection.execute(query))
        )

    def create(
        self, name: str, role: Role, *, who: str, lifetime_s: float | None = None
    ) -> tuple[AdminToken, Secret]:
        """Make a token; return it with its text, which is never seen again."""
        minted = mint(TOKEN_PREFIX)
        now = self._clock.wall()
        token = AdminToken(
            id=minted.id,
            name=name,
            role=role,
            secret_hash=minted.secret_hash,
            created_at=now,
            created_by=who,
            expires_at=None if lifetime_s is None else now + lifetime_s,
        )
        values = {
            "id": token.id,
            "name": name,
            "role": role.value,
            "secret_hash": token.secret_hash,
            "created_at": now,
            "created_by": who,
            "expires_at": token.expires_at,
        }
        self._database.write(
            lambda connection: connection.execute(admin_tokens.insert().values(values))
        )
        return token, minted.text

    def revoke(self, token_id: str) -> AdminToken:
        """End a token for good. Safe to repeat. Raises RequestError 404 `token_not_found`."""
        first = sa.func.coalesce(admin_tokens.c.revoked_at, self._clock.wall())
        change = (
            admin_tokens.update()
            .where(admin_tokens.c.id == token_id)
            .values(revoked_at=first)
            .returning(*admin_tokens.c)
        )
        row = self._database.write(lambda connection: connection.execute(change).one_or_none())
        if row is None:
            raise RequestError(
                f"there is no admin token {token_id!r}; `llmgw ctl tokens` lists them",
                status=404,
                code="token_not_found",
            )
        return _token(row)


def _token(row: sa.Row[tuple[object, ...]]) -> AdminToken:
    return AdminToken(
        id=row.id,
        name=row.name,
        role=Role(row.role),
        secret_hash=row.secret_hash,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
