"""Join tokens: made, listed, spent, revoked. Kept as a hash and a public certificate."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import sqlalchemy as sa

from llmgw.clock import Clock
from llmgw.contracts.join import JoinToken
from llmgw.contracts.joinproof import derive_join_authority
from llmgw.domain.secret import Secret
from llmgw.errors import PermanentError, RequestError
from llmgw.store.database import Database
from llmgw.store.schema import join_tokens
from llmgw.store.secrets import hash_secret

DEFAULT_LIFETIME_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTokenRecord:
    """A token as it is kept; the secret itself is not."""

    id: str
    secret_hash: str = field(repr=False)
    authority: bytes  #: PEM of the derived authority's certificate
    pool: str | None  #: that nodes are bound to; None: they choose
    local_only: bool  #: only good for agents on this machine
    uses_left: int | None  #: None: not limited
    created_at: float
    created_by: str
    expires_at: float | None
    revoked_at: float | None

    def usable(self, wall: float) -> bool:
        """Say whether a node may join with it at this time, Unix seconds."""
        return self.refusal(wall) is None

    def refusal(self, wall: float) -> str | None:
        """Return why it is of no use any more."""
        if self.revoked_at is not None:
            return "it was revoked"
        if self.uses_left == 0:
            return "it has been used"
        if self.expires_at is not None and wall >= self.expires_at:
            return "it has expired"
        return None


class JoinTokenRepository:
    """Tokens by id."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def list(self) -> tuple[JoinTokenRecord, ...]:
        """Return all tokens, spent and revoked ones too, oldest first."""
        query = sa.select(join_tokens).order_by(join_tokens.c.created_at, join_tokens.c.id)
        return self._database.read(
            lambda connection: tuple(_record(row) for row in connection.execute(query))
        )

    def create(
        self,
        *,
        pin: str,
        who: str,
        pool: str | None = None,
        uses: int | None = 1,
        lifetime_s: float | None = DEFAULT_LIFETIME_S,
        local_only: bool = False,
    ) -> tuple[JoinTokenRecord, JoinToken]:
        """Make a token; return it with its text, which is never seen again."""
        token = JoinToken(
            id=secrets.token_hex(6), secret=Secret(secrets.token_urlsafe(32)), pin=pin
        )
        now = self._clock.wall()
        record = JoinTokenRecord(
            id=token.id,
            secret_hash=hash_secret(token.secret.reveal()),
            authority=derive_join_authority(token.id, token.secret).certificate_pem,
            pool=pool,
            local_only=local_only,
            uses_left=uses,
            created_at=now,
            created_by=who,
            expires_at=None if lifetime_s is None else now + lifetime_s,
            revoked_at=None,
        )
        values = {
            "id": record.id,
            "secret_hash": record.secret_hash,
            "authority": record.authority.decode(),
            "pool": pool,
            "local_only": local_only,
            "uses_left": uses,
            "created_at": now,
            "created_by": who,
            "expires_at": record.expires_at,
        }
        self._database.write(
            lambda connection: connection.execute(join_tokens.insert().values(values))
        )
        return record, token

    def spend(self, token_id: str) -> JoinTokenRecord:
        """Take one use of a token. Raises PermanentError that says why it cannot be used.

        In one transaction: of two nodes that show a one-use token at once, one gets in.
        """
        now = self._clock.wall()

        def work(connection: sa.Connection) -> JoinTokenRecord:
            chosen = join_tokens.c.id == token_id
            row = connection.execute(
                sa.select(join_tokens).where(chosen).with_for_update()
            ).one_or_none()
            if row is None:
                raise PermanentError("this cluster does not know the join token")
            record = _record(row)
            if refusal := record.refusal(now):
                raise PermanentError(
                    f"the join token {token_id} cannot be used: {refusal}; make another with "
                    "`llmgw ctl join-token create`"
                )
            if record.uses_left is not None:
                connection.execute(
                    join_tokens.update().where(chosen).values(uses_left=join_tokens.c.uses_left - 1)
                )
            return record

        return self._database.write(work)

    def revoke(self, token_id: str) -> None:
        """End a token. Safe to repeat. Raises RequestError 404 `join_token_not_found`."""
        first = sa.func.coalesce(join_tokens.c.revoked_at, self._clock.wall())
        change = join_tokens.update().where(join_tokens.c.id == token_id).values(revoked_at=first)
        if self._database.write(lambda connection: connection.execute(change).rowcount) == 0:
            raise RequestError(
                f"there is no join token {token_id!r}; `llmgw ctl join-token list` lists them",
                status=404,
                code="join_token_not_found",
            )


def _record(row: sa.Row[tuple[object, ...]]) -> JoinTokenRecord:
    return JoinTokenRecord(
        id=row.id,
        secret_hash=row.secret_hash,
        authority=row.authority.encode(),
        pool=row.pool,
        local_only=row.local_only,
        uses_left=row.uses_left,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
