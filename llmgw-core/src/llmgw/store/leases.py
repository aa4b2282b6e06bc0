"""Who leads: a row with a term, timed by the database's clock; and the fence that proves it.

On SQLite one server has the file to itself (`store.lock`), so leading is only a matter of
counting: each start takes the next term. On PostgreSQL the lease runs out, and every act of a
leader checks it in its own transaction. Session advisory locks were tried and left out: a
stopped process keeps one for ever (docs/reliability.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from llmgw.contracts.leases import Lease
from llmgw.domain.ids import Epoch
from llmgw.errors import NotLeader
from llmgw.store.database import connect, translated
from llmgw.store.schema import lease

T = TypeVar("T")

NAME = "control"
LEASE_S = 15.0
LIMIT_S = 10.0
"""The holder stops this long after the start of its last good renewal, 5 s before another may."""

# A jump that no number of ordinary leaderships since the backup can have reached.
_BUMP = 1_000_000


class LeaseRow:
    """`contracts.leases.LeaseStore` on a connection of its own: a busy store thread must not
    cost the leadership."""

    name = "store"

    def __init__(self, url: sa.URL) -> None:
        self._engine = connect(url)
        self._expires = url.get_backend_name() != "sqlite"
        self._held: Lease | None = None

    def acquire(self, holder: str) -> Lease | None:
        """Take the lease if it is free or run out; None if another holds it."""
        return self._transact(lambda connection: self._acquire(connection, holder))

    def renew(self, held: Lease) -> bool:
        """Extend it; False if it is no longer ours, which ends the leadership at once."""
        if not self._expires:
            return self._held == held
        now = _database_now()
        change = (
            lease.update().where(_is(held), lease.c.expires >= now).values(expires=now + LEASE_S)
        )
        renewed = self._transact(lambda connection: connection.execute(change).rowcount == 1)
        if not renewed:
            self._held = None
        return renewed

    def release(self, held: Lease) -> None:
        """Give it back, so that another need not wait for it to run out."""
        self._held = None
        change = lease.update().where(_is(held)).values(holder=None, expires=0.0)
        self._transact(lambda connection: connection.execute(change))

    def leader(self) -> str | None:
        """Return who holds it now."""
        query = sa.select(lease.c.holder).where(lease.c.name == NAME)
        if self._expires:
            query = query.where(lease.c.expires >= _database_now())
        return self._transact(lambda connection: connection.execute(query).scalar(), write=False)

    def check(self, connection: sa.Connection) -> None:
        """Raise NotLeader unless this server leads; else hold the row until the transaction ends.

        FOR SHARE, not FOR KEY SHARE: a takeover changes no key and slips past the latter.
        """
        if not self._expires:
            return
        held = self._held
        if held is not None:
            query = sa.select(sa.literal(1)).where(_is(held)).with_for_update(read=True)
            if connection.execute(query).first() is not None:
                return
            self._held = None
        query_leader = sa.select(lease.c.holder).where(
            lease.c.name == NAME, lease.c.expires >= _database_now()
        )
        leader = connection.execute(query_leader).scalar()
        raise NotLeader(leader)

    def bump(self) -> int:
        """Move the term past every one that a node may have seen; return the new one.

        For a store that was restored from a backup: its term is older than what nodes know, and
        they would refuse its commands. Whoever leads stops leading.
        """
        change = (
            lease.update()
            .where(lease.c.name == NAME)
            .values(term=lease.c.term + _BUMP, holder=None, expires=0.0)
            .returning(lease.c.term)
        )
        return int(self._transact(lambda connection: connection.execute(change).scalar_one()))

    def close(self) -> None:
        self._engine.dispose()

    def _acquire(self, connection: sa.Connection, holder: str) -> Lease | None:
        change = lease.update().where(lease.c.name == NAME)
        if self._expires:
            now = _database_now()
            change = change.where(lease.c.expires < now).values(expires=now + LEASE_S)
        term = connection.execute(
            change.values(holder=holder, term=lease.c.term + 1).returning(lease.c.term)
        ).scalar()
        if term is None:
            return None
        self._held = Lease(
            holder=holder,
            epoch=Epoch(_timeline(connection) << 32 | term),
            term=term,
            limit_s=LIMIT_S if self._expires else math.inf,
        )
        return self._held

    def _transact(self, work: Callable[[sa.Connection], T], *, write: bool = True) -> T:
        with translated(), self._engine.connect() as connection:
            connection = connection.execution_options(llmgw_write=write)
            with connection.begin():
                return work(connection)


def _is(held: Lease) -> sa.ColumnElement[bool]:
    return sa.and_(lease.c.name == NAME, lease.c.holder == held.holder, lease.c.term == held.term)


def _database_now() -> sa.ColumnElement[float]:
    # Not now(): that is the start of the transaction, long ago if it waited for a lock.
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)


def _timeline(connection: sa.Connection) -> int:
    # After an asynchronous fail-over a term may be handed out twice, a timeline never. Of the log
    # that is written now: the control file has the old one until the first checkpoint, minutes
    # after a promotion.
    if connection.dialect.name == "sqlite":
        return 0
    name = connection.execute(sa.text("SELECT pg_walfile_name(pg_current_wal_lsn())")).scalar_one()
    return int(name[:8], 16)
