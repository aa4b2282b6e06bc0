"""The catalog: who owns each entry, and every change that it went through."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from pydantic import ValidationError

from llmgw.clock import Clock
from llmgw.domain.catalog import Model, name_conflicts
from llmgw.domain.ids import ModelName
from llmgw.errors import ConfigError, Problem, RequestError
from llmgw.store.database import Database
from llmgw.store.schema import catalog, catalog_history

API = "api"
"""Owner of entries that came through the admin API; files own theirs as `file:<name>`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A model in force."""

    model: Model
    owner: str  #: `api` or `file:<name>`
    version: int  #: of the change that made it what it is


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogChange:
    """One line of history."""

    version: int
    name: ModelName
    owner: str
    model: Model | None  #: None: removed
    who: str
    at: float  #: Unix seconds


class CatalogRepository:
    """Entries and their history. Every change is a leader's act."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def entries(self) -> tuple[CatalogEntry, ...]:
        """Return what is in force, by name."""
        return self._database.read(_entries)

    def version(self) -> int:
        """Return the number of the newest change, 0 for none: the catalog's ETag."""
        return self._database.read(_version)

    def history(
        self, name: ModelName | None = None, *, before: int | None = None, limit: int = 100
    ) -> tuple[CatalogChange, ...]:
        """Return changes, newest first, with versions below `before`."""
        query = sa.select(catalog_history).order_by(catalog_history.c.version.desc()).limit(limit)
        if name is not None:
            query = query.where(catalog_history.c.name == name)
        if before is not None:
            query = query.where(catalog_history.c.version < before)
        return self._database.read(
            lambda connection: tuple(_change(row) for row in connection.execute(query))
        )

    def apply(
        self,
        put: Sequence[Model],
        *,
        owner: str = API,
        who: str,
        remove: Iterable[ModelName] = (),
        expected_version: int | None = None,
    ) -> tuple[CatalogChange, ...]:
        """Put and remove entries, all or none; return what changed, () if nothing did.

        expected_version: the catalog as the caller saw it. Raises RequestError: 412
        `version_conflict` if it has moved on, 409 `name_taken` for a name or alias of another
        entry or owner, 404 `model_not_found` for one to remove that is not there.
        """

        def work(connection: sa.Connection) -> tuple[CatalogChange, ...]:
            _expect(connection, expected_version)
            return self._change(connection, put, tuple(remove), owner, who)

        return self._database.write(work, fenced=True)

    def replace_owned(
        self, owner: str, models: Sequence[Model], *, who: str
    ) -> tuple[CatalogChange, ...]:
        """Make `models` all that this owner has: how files are imported."""

        def work(connection: sa.Connection) -> tuple[CatalogChange, ...]:
            kept = {model.name for model in models}
            gone = [
                entry.model.name
                for entry in _entries(connection)
                if entry.owner == owner and entry.model.name not in kept
            ]
            return self._change(connection, models, gone, owner, who)

        return self._database.write(work, fenced=True)

    def rollback(
        self, version: int, *, who: str, expected_version: int | None = None
    ) -> tuple[CatalogChange, ...]:
        """Make the API's entries what they were just after change `version`; a change of its own.

        Files' entries are left alone: the next reading of the file would undo it. Raises
        RequestError 404 `unknown_version`, else as `apply`.
        """

        def work(connection: sa.Connection) -> tuple[CatalogChange, ...]:
            _expect(connection, expected_version)
            if not 0 <= version <= _version(connection):
                raise RequestError(
                    f"there is no catalog version {version}; `llmgw ctl history` lists them",
                    status=404,
                    code="unknown_version",
                )
            then = _as_of(connection, version)
            gone = [
                entry.model.name
                for entry in _entries(connection)
                if entry.owner == API and entry.model.name not in then
            ]
            return self._change(connection, tuple(then.values()), gone, API, who)

        return self._database.write(work, fenced=True)

    def _change(
        self,
        connection: sa.Connection,
        put: Sequence[Model],
        remove: Sequence[ModelName],
        owner: str,
        who: str,
    ) -> tuple[CatalogChange, ...]:
        present = {entry.model.name: entry for entry in _entries(connection)}
        for name in remove:
            _removable(present.get(name), name, owner)
        staying = [entry for name, entry in present.items() if name not in remove]
        _refuse_taken(put, staying, owner)
        at = self._clock.wall()
        changes = [
            _record(connection, name, owner, None, who, at) for name in dict.fromkeys(remove)
        ]
        for model in put:
            before = present.get(model.name)
            if before is None or before.model != model or model.name in remove:
                changes.append(_record(connection, model.name, owner, model, who, at))
        return tuple(changes)


def _removable(entry: CatalogEntry | None, name: ModelName, owner: str) -> None:
    if entry is None:
        raise RequestError(
            f"there is no model {name!r} in the catalog", status=404, code="model_not_found"
        )
    if entry.owner != owner:
        raise _owned_by(entry, name)


def _refuse_taken(put: Sequence[Model], staying: Sequence[CatalogEntry], owner: str) -> None:
    incoming = {model.name for model in put}
    for entry in staying:
        if entry.model.name in incoming and entry.owner != owner:
            raise _owned_by(entry, entry.model.name)
    kept = tuple(entry.model for entry in staying if entry.model.name not in incoming)
    if conflicts := name_conflicts((*kept, *put)):
        _, name, first = conflicts[0]
        raise RequestError(
            f"the name {name!r} is already taken by the model {first!r}; "
            "choose another name or alias",
            status=409,
            code="name_taken",
        )


def _owned_by(entry: CatalogEntry, name: ModelName) -> RequestError:
    place = (
        f"the file {entry.owner.removeprefix('file:')}; change it there"
        if entry.owner.startswith("file:")
        else "the admin API; remove it with `llmgw ctl delete` first"
    )
    return RequestError(f"the model {name!r} is kept in {place}", status=409, code="name_taken")


def _expect(connection: sa.Connection, expected: int | None) -> None:
    if expected is not None and (found := _version(connection)) != expected:
        raise RequestError(
            f"the catalog is at version {found}, not {expected}: somebody changed it; look at it "
            "again (`llmgw ctl diff`) and repeat",
            status=412,
            code="version_conflict",
        )


def _record(
    connection: sa.Connection,
    name: ModelName,
    owner: str,
    model: Model | None,
    who: str,
    at: float,
) -> CatalogChange:
    text = None if model is None else model.model_dump_json(exclude_defaults=True)
    values: Mapping[str, object] = {
        "name": name,
        "owner": owner,
        "entry_json": text,
    }
    version = connection.execute(
        catalog_history.insert()
        .values(**values, who=who, at=at)
        .returning(catalog_history.c.version)
    ).scalar_one()
    connection.execute(catalog.delete().where(catalog.c.name == name))
    if model is not None:
        connection.execute(catalog.insert().values(**values, version=version))
    return CatalogChange(version=version, name=name, owner=owner, model=model, who=who, at=at)


def _entries(connection: sa.Connection) -> tuple[CatalogEntry, ...]:
    rows = connection.execute(sa.select(catalog).order_by(catalog.c.name))
    return tuple(
        CatalogEntry(model=_model(row.name, row.entry_json), owner=row.owner, version=row.version)
        for row in rows
    )


def _version(connection: sa.Connection) -> int:
    newest = sa.select(sa.func.max(catalog_history.c.version))
    return connection.execute(newest).scalar() or 0


def _as_of(connection: sa.Connection, version: int) -> dict[ModelName, Model]:
    rows = connection.execute(
        sa.select(catalog_history)
        .where(catalog_history.c.version <= version)
        .order_by(catalog_history.c.version)
    )
    then: dict[ModelName, Model] = {}
    for change in map(_change, rows):
        then.pop(change.name, None)
        if change.model is not None and change.owner == API:
            then[change.name] = change.model
    return then


def _change(row: sa.Row[tuple[object, ...]]) -> CatalogChange:
    return CatalogChange(
        version=row.version,
        name=ModelName(row.name),
        owner=row.owner,
        model=None if row.entry_json is None else _model(row.name, row.entry_json),
        who=row.who,
        at=row.at,
    )


def _model(name: str, text: str) -> Model:
    """Read an entry. Raises ConfigError if this version cannot: while servers are upgraded one
    after the other, a newer one may have put in what an older one does not know."""
    try:
        return Model.model_validate(json.loads(text))
    except ValidationError as error:
        problems = [
            Problem(path=".".join(map(str, (name, *found["loc"]))), message=found["msg"])
            for found in error.errors(include_url=False, include_input=False)
        ]
        source = "an entry of the stored catalog that this version of llmgw cannot read; upgrade it"
        raise ConfigError(source, problems) from None
