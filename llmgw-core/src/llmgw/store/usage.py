"""What each key has used of each model, in hours; read as days."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from llmgw.clock import Clock
from llmgw.domain.keys import KeySpend
from llmgw.domain.usage import UsageBatch, UsageRecord
from llmgw.store.database import Database
from llmgw.store.schema import usage, usage_batches

_HOUR_S = 3600
_DAY_S = 86_400
_HOURS_PER_DAY = 24
_FIRST_FAILURE, _CLIENT_LEFT = 400, 499  # HTTP status
# A batch is repeated within seconds, after a lost reply; a day covers any router's restart.
_REMEMBER_BATCHES_S = float(_DAY_S)
_COUNTERS = ("requests", "failed", "prompt_tokens", "cached_tokens", "completion_tokens")


class UsageGroup(StrEnum):
    """What usage is summed by."""

    KEY = "key"
    MODEL = "model"
    DAY = "day"
    HOUR = "hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    """A sum; `key_id`, `model` and `start` are None where it was not grouped by them."""

    key_id: str | None
    model: str | None
    start: float | None  #: Unix seconds, of the day or hour
    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsageRepository:
    """Adds batches, returns sums."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def add(self, batch: UsageBatch) -> bool:
        """Add a batch once: False if one of this id has been added, so that it may be repeated."""
        now = self._clock.wall()

        def work(connection: sa.Connection) -> bool:
            mark = _insert(connection, usage_batches).values(id=batch.id, at=now)
            added = mark.on_conflict_do_nothing().returning(usage_batches.c.id)
            if connection.execute(added).first() is None:
                return False
            connection.execute(
                usage_batches.delete().where(usage_batches.c.at < now - _REMEMBER_BATCHES_S)
            )
            # In one order everywhere, or two servers would wait for each other.
            for (hour, key_id, model), counts in sorted(_by_place(batch.records).items()):
                _add(connection, hour, key_id, model, counts)
            return True

        return self._database.write(work)

    def spend(self) -> tuple[KeySpend, ...]:
        """Return what each key has used today and this month, for its budget."""
        now = datetime.fromtimestamp(self._clock.wall(), UTC)
        day = int(now.timestamp() // _DAY_S)
        month_began = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
        tokens = usage.c.prompt_tokens + usage.c.completion_tokens
        today = sa.case((usage.c.hour >= day * _HOURS_PER_DAY, tokens), else_=0)
        query = (
            sa.select(
                usage.c.key_id,
                sa.cast(sa.func.sum(today), sa.BigInteger).label("day"),
                sa.cast(sa.func.sum(tokens), sa.BigInteger).label("month"),
            )
            .where(usage.c.hour >= int(month_began // _HOUR_S), usage.c.key_id != "")
            .group_by(usage.c.key_id)
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return tuple(
            KeySpend(
                key=row.key_id,
                day=day,
                day_tokens=row.day,
                month=now.year * 12 + now.month - 1,
                month_tokens=row.month,
            )
            for row in rows
        )

    def sums(
        self,
        by: Iterable[UsageGroup],
        *,
        since: float,
        until: float | None = None,
        key_id: str | None = None,
        model: str | None = None,
    ) -> tuple[UsageSum, ...]:
        """Return sums over [since, until), Unix seconds, in the order of the groups."""
        groups = frozenset(by)
        columns: dict[str, sa.ColumnElement[Any]] = {}
        if UsageGroup.HOUR in groups:
            columns["start"] = sa.cast(usage.c.hour, sa.BigInteger)
        elif UsageGroup.DAY in groups:
            columns["start"] = (
                sa.cast(usage.c.hour, sa.BigInteger) // _HOURS_PER_DAY * _HOURS_PER_DAY
            )
        if UsageGroup.KEY in groups:
            columns["key_id"] = usage.c.key_id
        if UsageGroup.MODEL in groups:
            columns["model"] = usage.c.model
        query = sa.select(
            *(column.label(name) for name, column in columns.items()),
            *(sa.cast(sa.func.sum(usage.c[name]), sa.BigInteger).label(name) for name in _COUNTERS),
        ).where(usage.c.hour >= int(since // _HOUR_S))
        if until is not None:
            query = query.where(usage.c.hour < -int(-until // _HOUR_S))
        if key_id is not None:
            query = query.where(usage.c.key_id == key_id)
        if model is not None:
            query = query.where(usage.c.model == model)
        if columns:
            query = query.group_by(*columns.values()).order_by(*columns.values())
        return self._database.read(
            lambda connection: tuple(_sum(row) for row in connection.execute(query).mappings())
        )


def _by_place(
    records: Iterable[UsageRecord],
) -> dict[tuple[int, str, str], dict[str, int]]:
    places: dict[tuple[int, str, str], dict[str, int]] = {}
    for record in records:
        place = (int(record.at // _HOUR_S), record.key, record.model)
        counts = places.setdefault(place, dict.fromkeys(_COUNTERS, 0))
        counts["requests"] += record.requests
        if record.status >= _FIRST_FAILURE and record.status != _CLIENT_LEFT:
            counts["failed"] += record.requests
        counts["prompt_tokens"] += record.prompt_tokens
        counts["cached_tokens"] += record.cached_tokens
        counts["completion_tokens"] += record.completion_tokens
    return places


def _add(
    connection: sa.Connection, hour: int, key_id: str, model: str, counts: dict[str, int]
) -> None:
    # In one statement: another server may be the first of the hour at the same moment.
    first = _insert(connection, usage).values(hour=hour, key_id=key_id, model=model, **counts)
    connection.execute(
        first.on_conflict_do_update(
            index_elements=[usage.c.hour, usage.c.key_id, usage.c.model],
            set_={name: usage.c[name] + count for name, count in counts.items()},
        )
    )


def _insert(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Return an insertion that knows what to do where the row is there already."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)


def _sum(row: sa.RowMapping) -> UsageSum:
    start = row.get("start")
    return UsageSum(
        key_id=row.get("key_id"),
        model=row.get("model"),
        start=None if start is None else float(start) * _HOUR_S,
        requests=row["requests"] or 0,
        failed=row["failed"] or 0,
        prompt_tokens=row["prompt_tokens"] or 0,
        cached_tokens=row["cached_tokens"] or 0,
        completion_tokens=row["completion_tokens"] or 0,
    )
