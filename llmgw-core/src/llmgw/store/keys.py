"""API keys: made, changed, ended; handed to routers without their secrets."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace

import sqlalchemy as sa

from llmgw.clock import Clock
from llmgw.domain.ids import ModelName
from llmgw.domain.keys import KEY_PREFIX, ApiKey, KeyLimits, Scope
from llmgw.domain.secret import Secret
from llmgw.errors import RequestError
from llmgw.store.database import Database
from llmgw.store.schema import api_keys
from llmgw.store.secrets import mint

_LIMITS = frozenset(field.name for field in fields(KeyLimits))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key and its history. The secret itself is not kept."""

    key: ApiKey
    created_at: float  #: Unix seconds
    created_by: str
    revoked_at: float | None = None

    def usable(self, wall: float) -> bool:
        """Say whether it is in force at this time, Unix seconds."""
        expires = self.key.expires_at
        return self.revoked_at is None and (expires is None or wall < expires)


class KeyRepository:
    """API keys by id."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def list(self) -> tuple[KeyRecord, ...]:
        """Return all keys, ended ones too, oldest first."""
        query = sa.select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)
        return self._database.read(
            lambda connection: tuple(_record(row) for row in connection.execute(query))
        )

    def valid(self) -> tuple[ApiKey, ...]:
        """Return the keys in force now: what routers get."""
        wall = self._clock.wall()
        return tuple(record.key for record in self.list() if record.usable(wall))

    def create(
        self,
        name: str,
        *,
        who: str,
        models: tuple[ModelName, ...] | None = None,
        limits: KeyLimits = KeyLimits(),  # noqa: B008 - a frozen value
        scopes: tuple[Scope, ...] = (Scope.INFERENCE, Scope.MODELS),
        lifetime_s: float | None = None,
    ) -> tuple[KeyRecord, Secret]:
        """Make a key; return it with its text, which is never seen again."""
        minted = mint(KEY_PREFIX)
        now = self._clock.wall()
        key = ApiKey(
            id=minted.id,
            secret_hash=minted.secret_hash,
            name=name,
            scopes=scopes,
            models=models,
            limits=limits,
            expires_at=None if lifetime_s is None else now + lifetime_s,
        )
        values = {
            "id": key.id,
            "name": name,
            "secret_hash": key.secret_hash,
            "grant_json": _grant(key),
            "created_at": now,
            "created_by": who,
            "expires_at": key.expires_at,
        }
        self._database.write(
            lambda connection: connection.execute(api_keys.insert().values(values))
        )
        return KeyRecord(key=key, created_at=now, created_by=who), minted.text

    def change(
        self, key_id: str, *, models: tuple[ModelName, ...] | None, limits: KeyLimits
    ) -> tuple[KeyRecord, KeyRecord]:
        """Replace what a key may use; return it before and after. Raises RequestError 404."""

        def work(connection: sa.Connection) -> tuple[KeyRecord, KeyRecord]:
            chosen = api_keys.c.id == key_id
            row = connection.execute(sa.select(api_keys).where(chosen)).one_or_none()
            if row is None:
                raise _unknown(key_id)
            before = _record(row)
            after = replace(before, key=replace(before.key, models=models, limits=limits))
            connection.execute(api_keys.update().where(chosen).values(grant_json=_grant(after.key)))
            return before, after

        return self._database.write(work)

    def revoke(self, key_id: str) -> KeyRecord:
        """End a key for good. Safe to repeat. Raises RequestError 404 `key_not_found`."""
        first = sa.func.coalesce(api_keys.c.revoked_at, self._clock.wall())
        change = (
            api_keys.update()
            .where(api_keys.c.id == key_id)
            .values(revoked_at=first)
            .returning(*api_keys.c)
        )
        row = self._database.write(lambda connection: connection.execute(change).one_or_none())
        if row is None:
            raise _unknown(key_id)
        return _record(row)


def _unknown(key_id: str) -> RequestError:
    return RequestError(
        f"there is no API key {key_id!r}; `llmgw ctl keys` lists them",
        status=404,
        code="key_not_found",
    )


def _grant(key: ApiKey) -> str:
    return json.dumps({"scopes": key.scopes, "models": key.models, "limits": asdict(key.limits)})


def _record(row: sa.Row[tuple[object, ...]]) -> KeyRecord:
    grant = json.loads(row.grant_json)
    models, limits = grant["models"], grant["limits"]
    given = {name for name, value in limits.items() if value is not None}
    if not given <= _LIMITS:
        models = ()  # a newer server's limit, which this one cannot keep: it opens nothing here
    return KeyRecord(
        key=ApiKey(
            id=row.id,
            secret_hash=row.secret_hash,
            name=row.name,
            scopes=tuple(scope for scope in Scope if scope in grant["scopes"]),
            models=None if models is None else tuple(ModelName(name) for name in models),
            limits=KeyLimits(**{name: limits[name] for name in given & _LIMITS}),
            expires_at=row.expires_at,
        ),
        created_at=row.created_at,
        created_by=row.created_by,
        revoked_at=row.revoked_at,
    )
