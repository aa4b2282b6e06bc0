"""API keys: who may send requests to which models, and how many."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

import sqlalchemy as sa

from llmgw.clock import Clock
from llmgw.domain.secret import Secret
from llmgw.errors import RequestError
from llmgw.store.database import Database
from llmgw.store.schema import api_keys
from llmgw.store.secrets import mint

KEY_PREFIX = "llmgw"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What one key may use. None: not limited."""

    models: tuple[str, ...] | None = None  #: canonical names
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_inflight: int | None = None
    priority: str | None = None  #: the most urgent class that it may ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as it is kept; the secret itself is not."""

    id: str
    name: str
    secret_hash: str = field(repr=False)  #: hex SHA-256 of the part after the id
    limits: KeyLimits
    created_at: float
    created_by: str
    expires_at: float | None = None  #: Unix seconds
    revoked_at: float | None = None

    def usable(self, wall: float) -> bool:
        """Say whether it is in force at this time, Unix seconds."""
        return self.revoked_at is None and (self.expires_at is None or wall < self.expires_at)


class KeyRepository:
    """API keys by id."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def list(self) -> tuple[ApiKey, ...]:
        """Return all keys, revoked ones too, oldest first."""
        query = sa.select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)
        return self._database.read(
            lambda connection: tuple(_key(row) for row in connection.execute(query))
        )

    def create(
        self, name: str, limits: KeyLimits, *, who: str, lifetime_s: float | None = None
    ) -> tuple[ApiKey, Secret]:
        """Make a key; return it with its text, which is never seen again."""
        minted = mint(KEY_PREFIX)
        now = self._clock.wall()
        key = ApiKey(
            id=minted.id,
            name=name,
            secret_hash=minted.secret_hash,
            limits=limits,
            created_at=now,
            created_by=who,
            expires_at=None if lifetime_s is None else now + lifetime_s,
        )
        values = {
            "id": key.id,
            "name": name,
            "secret_hash": key.secret_hash,
            "grant_json": json.dumps(asdict(limits)),
            "created_at": now,
            "created_by": who,
            "expires_at": key.expires_at,
        }
        self._database.write(
            lambda connection: connection.execute(api_keys.insert().values(values))
        )
        return key, minted.text

    def set_limits(self, key_id: str, limits: KeyLimits) -> ApiKey:
        """Replace what a key may use. Raises RequestError 404 `key_not_found`."""
        return self._set(key_id, grant_json=json.dumps(asdict(limits)))

    def revoke(self, key_id: str) -> ApiKey:
        """End a key for good. Safe to repeat. Raises RequestError 404 `key_not_found`."""
        first = sa.func.coalesce(api_keys.c.revoked_at, self._clock.wall())
        return self._set(key_id, revoked_at=first)

    def _set(self, key_id: str, **values: object) -> ApiKey:
        change = api_keys.update().where(api_keys.c.id == key_id).values(values)
        row = self._database.write(
            lambda connection: connection.execute(change.returning(*api_keys.c)).one_or_none()
        )
        if row is None:
            raise RequestError(
                f"there is no API key {key_id!r}; `llmgw ctl keys` lists them",
                status=404,
                code="key_not_found",
            )
        return _key(row)


def _key(row: sa.Row[tuple[object, ...]]) -> ApiKey:
    grant = json.loads(row.grant_json)
    models = grant.pop("models", None)
    return ApiKey(
        id=row.id,
        name=row.name,
        secret_hash=row.secret_hash,
        limits=KeyLimits(models=None if models is None else tuple(models), **grant),
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
