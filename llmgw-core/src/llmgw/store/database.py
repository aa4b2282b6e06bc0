"""One thread, one connection, a deadline: how everything here reaches the database.

Statements run on the store thread only, so that a slow disk or a lost server holds up neither
the event loop nor a second caller's half of a transaction. From a coroutine: `await
database.run(lambda: …)`. From any other thread the repositories may be called as they are;
they hop onto the store thread by themselves.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
import sqlalchemy as sa
from sqlalchemy import event

from llmgw.errors import ConfigError, Problem, StoreUnavailable

T = TypeVar("T")

# Any constant will do that nobody else uses on this database.
_ADVISORY_KEY = 0x6C6C6D67

# Threads that wait for the store thread. Their own: a store that hangs must not use up those that
# the rest of the process shares.
_MOST_WAITERS = 32

DEADLINE_S = 5.5
"""Above the database's own limit of a statement (5 s), whose message is the clearer one; and so
that a client has its refusal within 6 s."""

# RELIABILITY section 2: a frozen holder of row locks would block renewal and takeover. Set in
# each transaction, because a pooler in transaction mode forgets what a session was told.
_POSTGRES_LIMITS = (
    "SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = '5s'; "
    "SET LOCAL idle_in_transaction_session_timeout = '3s'"
)


# A database host that is gone without a word, after a fail-over say, leaves connections on which
# the system would wait for a quarter of an hour, and nobody would lead for as long.
_POSTGRES_OPTIONS = {
    "connect_timeout": 5,
    "application_name": "llmgw",
    "tcp_user_timeout": 6000,  # milliseconds until what was sent must have arrived
    "keepalives_idle": 5,  # seconds of silence, while an answer is waited for
    "keepalives_interval": 2,
    "keepalives_count": 3,
}


class Fence(Protocol):
    """Proves inside a transaction that this server still leads."""

    def check(self, connection: sa.Connection) -> None:
        """Raise NotLeader if it does not; else keep it so until the transaction ends."""
        ...


def connect(url: sa.URL) -> sa.Engine:
    """Return an engine for one thread. Nothing is opened yet."""
    if url.get_backend_name() == "sqlite":
        return _sqlite(url)
    return _postgres(url)


def parse_url(text: str) -> sa.URL:
    """Read `store.url`. Raises ConfigError for what is neither SQLite nor PostgreSQL."""
    try:
        url = sa.make_url(text)
    except sa.exc.ArgumentError:
        url = None
    if url is not None and url.drivername == "sqlite" and url.database:
        return url
    if url is not None and url.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    # The text may hold a password, so it is not repeated.
    raise ConfigError(
        "store.url",
        [
            Problem(
                path="store.url",
                message="must be sqlite:////ABSOLUTE/FILE.db or postgresql://USER@HOST/DATABASE",
            )
        ],
    )


class Database:
    """The store thread and its engine."""

    def __init__(self, engine: sa.Engine, *, deadline_s: float = DEADLINE_S) -> None:
        self.engine = engine
        self._deadline_s = deadline_s
        self.fence: Fence | None = None  #: set once the lease store exists
        self._thread_id: int | None = None
        self._waiters: anyio.CapacityLimiter | None = None
        self._executor = concurrent.futures.ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="llmgw-store", initializer=self._remember_thread
        )

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @property
    def path(self) -> Path | None:
        """Return SQLite's file; None on PostgreSQL."""
        return Path(str(self.engine.url.database)) if self.is_sqlite else None

    async def run(self, work: Callable[[], T]) -> T:
        """Return `work()`, done on the store thread.

        Raises StoreUnavailable after the deadline. Work that had not begun by then never will;
        work that had may still be carried out.
        """
        if self._waiters is None:
            self._waiters = anyio.CapacityLimiter(_MOST_WAITERS)
        with anyio.move_on_after(self._deadline_s + 1.0):
            return await anyio.to_thread.run_sync(
                self.call, work, abandon_on_cancel=True, limiter=self._waiters
            )
        raise StoreUnavailable(
            "too many wait for the store already; nothing was changed",
            retry_after_s=self._deadline_s,
        )

    def call(self, work: Callable[[], T]) -> T:
        """As `run`, for threads; at once when already on the store thread."""
        if threading.get_ident() == self._thread_id:
            return work()
        try:
            future = self._executor.submit(work)
        except RuntimeError:
            raise StoreUnavailable("the store is closed: this server is stopping") from None
        try:
            return future.result(self._deadline_s)
        except concurrent.futures.TimeoutError:
            begun = not future.cancel()
            raise StoreUnavailable(
                f"the store did not answer within {self._deadline_s:g} s; "
                + ("the change may still take effect" if begun else "nothing was changed"),
                retry_after_s=self._deadline_s,
            ) from None

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Return `work(connection)` of one consistent view."""
        return self.call(lambda: self._transact(work, write=False, fenced=False))

    def write(self, work: Callable[[sa.Connection], T], *, fenced: bool = False) -> T:
        """Do `work` in one transaction, wholly or not at all.

        fenced: it is a leader's act; raises NotLeader if another server leads.
        """
        return self.call(lambda: self._transact(work, write=True, fenced=fenced))

    def _transact(self, work: Callable[[sa.Connection], T], *, write: bool, fenced: bool) -> T:
        with translated(), self.engine.connect() as connection:
            connection = connection.execution_options(llmgw_write=write)
            with connection.begin():
                if fenced and self.fence is not None:
                    self.fence.check(connection)
                return work(connection)

    def close(self) -> None:
        """Finish what is queued and close the connection."""
        self._executor.shutdown(wait=True)
        self._thread_id = None  # the system gives the number of a thread that ended to a new one
        self.engine.dispose()

    def _remember_thread(self) -> None:
        self._thread_id = threading.get_ident()


def take_exclusively(connection: sa.Connection) -> None:
    """Let no other server prepare the store until this transaction ends.

    For what the first start does; SQLite's write transactions are exclusive by themselves.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_KEY})


@contextmanager
def translated() -> Iterator[None]:
    """Turn the database's errors into ours, without the statement and its values."""
    try:
        yield
    except (
        sa.exc.OperationalError,
        sa.exc.InterfaceError,
        sa.exc.InternalError,
        sa.exc.TimeoutError,
        sa.exc.DataError,
        sa.exc.ProgrammingError,
    ) as error:
        raise StoreUnavailable(f"the store refused: {_cause(error)}", retry_after_s=2.0) from None
    except sa.exc.IntegrityError:
        raise StoreUnavailable(
            "another server has just written the same; nothing was changed", retry_after_s=1.0
        ) from None
    except sa.exc.DatabaseError as error:
        raise StoreUnavailable(f"the store is damaged: {_cause(error)}") from None


def _cause(error: sa.exc.SQLAlchemyError) -> str:
    original = getattr(error, "orig", None)
    # Further lines may quote the statement, and with it values.
    text = str(original or error).strip().splitlines() or [type(error).__name__]
    return {
        "database is locked": "another process holds the database file locked",
        "attempt to write a readonly database": "the database file is read-only",
        "database or disk is full": "the disk is full",
    }.get(text[0], text[0])


def _sqlite(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": 2.0, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        # The driver must not begin transactions by itself: its deferred BEGIN reads first and
        # then fails with "database is locked" on the way to a write (C070).
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        write = connection.get_execution_options().get("llmgw_write", True)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _postgres(url: sa.URL) -> sa.Engine:
    try:
        engine = sa.create_engine(
            url,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,
            connect_args={
                name: value for name, value in _POSTGRES_OPTIONS.items() if name not in url.query
            },
        )
    except ModuleNotFoundError:
        raise ConfigError(
            "store.url",
            [
                Problem(
                    path="store.url",
                    message="PostgreSQL needs a driver that is not installed; "
                    "run: pip install 'llmgw-core[postgres]'",
                )
            ],
        ) from None

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        if connection.get_execution_options().get("llmgw_limits", True):
            connection.exec_driver_sql(_POSTGRES_LIMITS)

    return engine
