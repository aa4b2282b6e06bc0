"""The store as a whole: opened once per process, closed at its end."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.domain.secret import Secret
from llmgw.errors import ConfigError, Problem, StoreUnavailable
from llmgw.logs import get_logger
from llmgw.store.catalog import CatalogRepository
from llmgw.store.database import Database, connect, parse_url, take_exclusively
from llmgw.store.events import EventRepository
from llmgw.store.keys import KeyRepository
from llmgw.store.learned import LearnedFigures
from llmgw.store.leases import NAME, LeaseRow
from llmgw.store.lock import FileLock
from llmgw.store.migrate import migrate, stored_version
from llmgw.store.nodes import NodeRepository
from llmgw.store.schema import authorities, cluster, lease
from llmgw.store.tokens import TokenRepository
from llmgw.store.trust.authorities import AuthorityRepository
from llmgw.store.trust.joining import JoinTokenRepository
from llmgw.store.trust.sealing import Seal, read_cluster_secret
from llmgw.store.trust.trust import StoreTrust
from llmgw.store.usage import UsageRepository

T = TypeVar("T")
log = get_logger(__name__)

FLUSH_S = 1.0
"""How soon what the control plane did is in the timeline."""
REFRESH_S = 10.0
"""How soon a token or a revocation that another server made is known here."""


class Store:
    """Repositories over one database. They may be used from any thread but the event loop's;
    coroutines go through `run`."""

    def __init__(
        self,
        database: Database,
        leases: LeaseRow,
        clock: Clock,
        *,
        state_dir: Path,
        cluster_id: str,
        seal: Seal,
        names: Sequence[str],
        lock: FileLock | None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._state_dir = state_dir
        self._lock = lock
        self.cluster_id = cluster_id
        self.leases = leases
        self.catalog = CatalogRepository(database, clock)
        self.nodes = NodeRepository(database, clock)
        self.keys = KeyRepository(database, clock)
        self.tokens = TokenRepository(database, clock)
        self.usage = UsageRepository(database, clock)
        self.events = EventRepository(database, clock)
        self.learned = LearnedFigures(database, clock)
        self.trust = StoreTrust(
            database,
            AuthorityRepository(database, seal, clock, cluster_id),
            JoinTokenRepository(database, clock),
            clock,
            cluster_id=cluster_id,
            names=names,
        )

    async def run(self, work: Callable[[], T]) -> T:
        """Return `work()`, done on the store thread, e.g. `await store.run(store.nodes.list)`.

        Raises StoreUnavailable if there is no answer in time.
        """
        return await self._database.run(work)

    async def keep_fresh(self, *, task_status: TaskStatus[None]) -> None:
        """Write the local join token, then store events and follow other servers' tokens, for ever."""
        await self.run(lambda: self.trust.write_local_token(self._state_dir / "join.token"))
        task_status.started()
        next_refresh = self._clock.monotonic() + REFRESH_S
        away = False
        while True:
            await self._clock.sleep(FLUSH_S)
            try:
                await self.run(self.events.flush)
                if self._clock.monotonic() >= next_refresh:
                    next_refresh = self._clock.monotonic() + REFRESH_S
                    await self.run(self.trust.refresh)
                away = False
            except StoreUnavailable as error:
                if not away:
                    log.warning("events wait for the store", reason=str(error), retry_in_s=FLUSH_S)
                away = True

    def check(self) -> tuple[str, ...]:
        """Return what is wrong with the store, () if nothing."""

        def work(connection: sa.Connection) -> tuple[str, ...]:
            problems = []
            if self._database.is_sqlite:
                found = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
                problems += [str(line) for line in found if line != "ok"]
            if (
                connection.execute(sa.select(lease.c.term).where(lease.c.name == NAME)).scalar()
                is None
            ):
                problems.append("the lease row is missing; restore a backup")
            return tuple(problems)

        return self._database.read(work)

    def schema_version(self) -> str | None:
        """Return the version of the tables."""
        return self._database.read(stored_version)

    def bump_epoch(self) -> int:
        """Move past every epoch that a node may know: after a restore. Returns the new term."""
        return self.leases.bump()

    def close(self) -> None:
        """Finish what is queued; let another process have the file. Safe to repeat."""
        self._database.close()
        self.leases.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def open_store(
    url: str | None,
    *,
    state_dir: Path,
    clock: Clock,
    cluster_secret: Secret | None = None,
    cluster_secret_file: Path | None = None,
    server_names: Sequence[str] = (),
) -> Store:
    """Open the store, bringing its tables up to date. May take seconds; not on the event loop.

    url: SQLAlchemy URL, None for `<state_dir>/llmgw.db`. cluster_secret: given in the settings;
    None: read from cluster_secret_file, or `<state_dir>/cluster.secret`, made for a new store.
    server_names: further host names or addresses for the certificate that agents check.

    Raises ConfigError: bad URL, file in use by another server, newer tables, missing or wrong
    cluster secret. Raises StoreUnavailable: no connection.
    """
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    parsed = parse_url(url or f"sqlite:///{state_dir.absolute() / 'llmgw.db'}")
    lock = _lock(parsed)
    database = Database(connect(parsed))
    try:
        database.call(lambda: migrate(database.engine))
        cluster_id, is_new = database.write(_first_rows)
        if cluster_secret is None:
            path = cluster_secret_file or state_dir / "cluster.secret"
            cluster_secret = read_cluster_secret(path, may_create=is_new)
        leases = LeaseRow(parsed)
        database.fence = leases
        return Store(
            database,
            leases,
            clock,
            state_dir=state_dir,
            cluster_id=cluster_id,
            seal=Seal(cluster_secret),
            names=tuple(dict.fromkeys(("localhost", socket.gethostname(), *server_names))),
            lock=lock,
        )
    except BaseException:
        database.close()
        if lock is not None:
            lock.release()
        raise


def _lock(url: sa.URL) -> FileLock | None:
    if url.get_backend_name() != "sqlite":
        return None
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        return FileLock(path)
    except OSError as error:
        raise ConfigError(
            "store.url",
            [Problem(path="store.url", message=f"{path} cannot be opened: {error.strerror}")],
        ) from None


def _first_rows(connection: sa.Connection) -> tuple[str, bool]:
    """Return the cluster id, and whether the store holds no sealed key yet."""
    take_exclusively(connection)
    found = connection.execute(
        sa.select(cluster.c.value).where(cluster.c.key == "cluster_id")
    ).scalar()
    if found is None:
        found = secrets.token_hex(16)
        connection.execute(cluster.insert().values(key="cluster_id", value=found))
        connection.execute(lease.insert().values(name=NAME, term=0, expires=0.0))
    sealed = connection.execute(sa.select(authorities.c.id)).first()
    return found, sealed is None
