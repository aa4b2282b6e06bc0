"""What each key has used of each model, in hours; read as days."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from llmgw.clock import Clock
from llmgw.store.database import Database
from llmgw.store.schema import usage, usage_batches

_HOUR_S = 3600
_HOURS_PER_DAY = 24
# A batch is repeated within seconds, after a lost reply; a day covers any router's restart.
_REMEMBER_BATCHES_S = 86_400.0
_COUNTERS = ("requests", "failed", "prompt_tokens", "cached_tokens", "completion_tokens")


class UsageGroup(StrEnum):
    """What usage is summed by."""

    KEY = "key"
    MODEL = "model"
    DAY = "day"
    HOUR = "hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """Requests of one key to one model in one hour."""

    hour: int  #: hours since 1970, UTC
    key_id: str  #: "" where the listener asks for no key
    model: str  #: canonical name
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


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

    def add(self, batch_id: str, records: Iterable[UsageRecord]) -> bool:
        """Add a batch once: False if one of this id has been added, so that it may be repeated.

        batch_id: unique for ever, e.g. `<router boot id>/<counter>`.
        """
        now = self._clock.wall()
        rows = tuple(records)

        def work(connection: sa.Connection) -> bool:
            if connection.execute(
                sa.select(usage_batches.c.id).where(usage_batches.c.id == batch_id)
            ).first():
                return False
            connection.execute(usage_batches.insert().values(id=batch_id, at=now))
            connection.execute(
                usage_batches.delete().where(usage_batches.c.at < now - _REMEMBER_BATCHES_S)
            )
            for row in rows:
                _add(connection, row)
            return True

        return self._database.write(work)

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


def _add(connection: sa.Connection, record: UsageRecord) -> None:
    same = sa.and_(
        usage.c.hour == record.hour,
        usage.c.key_id == record.key_id,
        usage.c.model == record.model,
    )
    counts = {name: getattr(record, name) for name in _COUNTERS}
    change = (
        usage.update()
        .where(same)
        .values({usage.c[name]: usage.c[name] + count for name, count in counts.items()})
    )
    if connection.execute(change).rowcount == 0:
        connection.execute(
            usage.insert().values(
                hour=record.hour, key_id=record.key_id, model=record.model, **counts
            )
        )


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
