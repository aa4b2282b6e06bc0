"""What happened to the cluster, and what people did to it: kept for ever, newest read first."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from llmgw.clock import Clock
from llmgw.store.database import Database
from llmgw.store.schema import events

SYSTEM = "llmgw"
"""`who` of events that no person caused."""

_SUBJECTS = ("model", "node", "replica")
# An hour of a busy fleet; a store that is away for longer costs the oldest events, no memory.
_MOST_WAITING = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the operators' timeline."""

    id: int
    at: float  #: Unix seconds
    who: str  #: name of the token that was used, or `llmgw`
    kind: str  #: snake_case, e.g. `catalog_changed`, `node_cordoned`
    subject: str  #: e.g. `node gpu-01`, `model llama-3.1-8b`
    message: str
    before: object = None  #: JSON values; never a secret
    after: object = None


class EventRepository:
    """Append and read."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._waiting: deque[tuple[float, str, Mapping[str, str]]] = deque(maxlen=_MOST_WAITING)

    def record(self, event: str, fields: Mapping[str, str]) -> None:
        """Note what the control plane did, to be stored by the next `flush`. Never waits.

        event: as in the log, lower-case words. fields: the first of `model`, `node` and `replica`
        that is there is the subject.
        """
        self._waiting.append((self._clock.wall(), event, dict(fields)))

    def flush(self) -> None:
        """Store what was recorded; keep it if the store is away."""
        waiting = list(self._waiting)
        rows = [
            {
                "at": at,
                "who": SYSTEM,
                "kind": event.replace(" ", "_")[:64],
                "subject": next(
                    (f"{word} {fields[word]}" for word in _SUBJECTS if word in fields), SYSTEM
                ),
                "message": " ".join(f"{name}={value}" for name, value in fields.items()),
            }
            for at, event, fields in waiting
        ]
        if rows:
            self._database.write(lambda connection: connection.execute(events.insert(), rows))
            # From the left, and only these: more may have come since, and then pushed some out.
            for item in waiting:
                if self._waiting and self._waiting[0] is item:
                    self._waiting.popleft()

    def add(
        self,
        kind: str,
        subject: str,
        message: str,
        *,
        who: str = SYSTEM,
        before: object = None,
        after: object = None,
    ) -> Event:
        """Append one event and return it."""
        values = {
            "at": self._clock.wall(),
            "who": who,
            "kind": kind,
            "subject": subject,
            "message": message,
            "before_json": _dump(before),
            "after_json": _dump(after),
        }
        row = self._database.write(
            lambda connection: connection.execute(
                events.insert().values(values).returning(*events.c)
            ).one()
        )
        return _event(row)

    def list(
        self,
        *,
        before: int | None = None,
        after: int | None = None,
        subject: str | None = None,
        limit: int = 100,
    ) -> tuple[Event, ...]:
        """Return events with ids between `after` and `before`, both left out, newest first.

        With `after` the oldest of them are kept where there are more than `limit`, so that a
        follower misses none.
        """
        query = sa.select(events).limit(limit)
        query = query.order_by(events.c.id if after is not None else events.c.id.desc())
        if before is not None:
            query = query.where(events.c.id < before)
        if after is not None:
            query = query.where(events.c.id > after)
        if subject is not None:
            query = query.where(events.c.subject == subject)
        found = self._database.read(
            lambda connection: [_event(row) for row in connection.execute(query)]
        )
        return tuple(sorted(found, key=lambda event: -event.id))


def _dump(value: object) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True, default=str)


def _event(row: sa.Row[tuple[object, ...]]) -> Event:
    return Event(
        id=row.id,
        at=row.at,
        who=row.who,
        kind=row.kind,
        subject=row.subject,
        message=row.message,
        before=None if row.before_json is None else json.loads(row.before_json),
        after=None if row.after_json is None else json.loads(row.after_json),
    )
