"""The cluster's certificate authorities: one issues, others are trusted while one replaces another."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from llmgw.clock import Clock
from llmgw.errors import RequestError
from llmgw.store.database import Database, take_exclusively
from llmgw.store.schema import authorities
from llmgw.store.trust.certificates import (
    Authority,
    key_pem,
    load_authority,
    new_authority,
)
from llmgw.store.trust.sealing import Seal

_PURPOSE = "authority key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """Those in force."""

    issuing: Authority
    trusted: tuple[Authority, ...]  #: all, the issuing one first

    @property
    def bundle(self) -> bytes:
        """Return the PEM of every authority that a peer should trust."""
        return b"".join(authority.certificate_pem for authority in self.trusted)


class AuthorityRepository:
    """Replaces the authority in three steps, reversible until the last.

    `begin_rotation`: a second one is trusted. `switch`: it issues. `finish_rotation`: the first
    is dropped. Between steps wait until every node has renewed (at most 30 days, usually 10).
    """

    def __init__(self, database: Database, seal: Seal, clock: Clock, cluster_id: str) -> None:
        self._database = database
        self._seal = seal
        self._clock = clock
        self._cluster_id = cluster_id

    def load(self) -> Authorities:
        """Return those in force; makes the first one in a new store."""
        return self._database.write(self._load_or_make)

    def begin_rotation(self) -> Authorities:
        """Trust a second authority. Raises RequestError 409 if a change is under way."""

        def work(connection: sa.Connection) -> Authorities:
            if len(_rows(connection)) > 1:
                raise _conflict("a change of the authority is already under way")
            self._insert(connection, issuing=False)
            return self._load(connection)

        return self._database.write(work)

    def switch(self) -> Authorities:
        """Let the other authority issue; again: back to the first."""

        def work(connection: sa.Connection) -> Authorities:
            if len(_rows(connection)) < 2:
                raise _conflict("no change of the authority is under way; begin one first")
            connection.execute(authorities.update().values(issuing=~authorities.c.issuing))
            return self._load(connection)

        return self._database.write(work)

    def finish_rotation(self) -> Authorities:
        """Stop trusting what does not issue. Nodes that have not renewed must join again."""

        def work(connection: sa.Connection) -> Authorities:
            if len(_rows(connection)) < 2:
                raise _conflict("no change of the authority is under way")
            connection.execute(authorities.delete().where(~authorities.c.issuing))
            return self._load(connection)

        return self._database.write(work)

    def _load_or_make(self, connection: sa.Connection) -> Authorities:
        take_exclusively(connection)
        if not _rows(connection):
            self._insert(connection, issuing=True)
        return self._load(connection)

    def _load(self, connection: sa.Connection) -> Authorities:
        rows = _rows(connection)
        loaded = tuple(
            load_authority(
                row.certificate.encode(), self._seal.open(row.sealed_key, purpose=_PURPOSE)
            )
            for row in rows
        )
        return Authorities(issuing=loaded[0], trusted=loaded)

    def _insert(self, connection: sa.Connection, *, issuing: bool) -> None:
        now = self._clock.wall()
        authority = new_authority(self._cluster_id, now)
        connection.execute(
            authorities.insert().values(
                certificate=authority.certificate_pem.decode(),
                sealed_key=self._seal.close(key_pem(authority.key), purpose=_PURPOSE),
                issuing=issuing,
                created_at=now,
            )
        )


def _rows(connection: sa.Connection) -> list[sa.Row[tuple[object, ...]]]:
    query = sa.select(authorities).order_by(authorities.c.issuing.desc(), authorities.c.id)
    return list(connection.execute(query))


def _conflict(message: str) -> RequestError:
    return RequestError(message, status=409, code="authority_rotation")
