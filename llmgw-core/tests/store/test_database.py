"""The store thread: a deadline for callers, whole transactions or none, errors in our words."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from llmgw.errors import StoreUnavailable
from llmgw.store.database import Database, connect, parse_url
from llmgw.store.migrate import migrate
from llmgw.store.schema import cluster

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(connect(parse_url(f"sqlite:///{tmp_path / 'x.db'}")))
    migrate(opened.engine)
    yield opened
    opened.close()


async def test_work_runs_on_one_thread_only(database: Database) -> None:
    seen = {await database.run(threading.get_ident) for _ in range(5)}
    assert len(seen) == 1
    assert threading.get_ident() not in seen


async def test_work_may_use_the_repositories_it_is_given(database: Database) -> None:
    count = sa.select(sa.func.count()).select_from(cluster)
    nested = await database.run(
        lambda: database.read(lambda connection: connection.execute(count).scalar())
    )
    assert nested == 0


async def test_work_that_had_not_begun_at_the_deadline_never_does(tmp_path: Path) -> None:
    impatient = Database(connect(parse_url(f"sqlite:///{tmp_path / 'x.db'}")), deadline_s=0.2)
    done: list[str] = []
    entered, go_on = threading.Event(), threading.Event()

    def stuck() -> None:
        entered.set()
        go_on.wait(5)
        done.append("stuck")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(give_up_on, impatient, stuck, "may still take effect")
        await anyio.to_thread.run_sync(entered.wait)
        await give_up_on(impatient, lambda: done.append("late"), "nothing was changed")
    go_on.set()  # not before both have given up
    await anyio.to_thread.run_sync(impatient.close)  # returns when all that was queued has ended
    assert done == ["stuck"]


async def test_a_store_that_hangs_takes_no_thread_from_the_rest(tmp_path: Path) -> None:
    slow = Database(connect(parse_url(f"sqlite:///{tmp_path / 'x.db'}")), deadline_s=1.0)
    go_on = threading.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(60):
            tasks.start_soon(give_up_on, slow, lambda: go_on.wait(5), "store")
        await anyio.sleep(0.2)
        with anyio.fail_after(0.5):
            await anyio.to_thread.run_sync(int)
    go_on.set()
    slow.close()


async def give_up_on(database: Database, work: Callable[[], object], message: str) -> None:
    with pytest.raises(StoreUnavailable, match=message):
        await database.run(work)


async def test_a_slow_store_is_refused_within_six_seconds_and_in_its_own_words(
    postgres_url: str, tmp_path: Path
) -> None:
    """PostgreSQL ends a statement after 5 s and says so; what hangs without a word is left then."""
    slow = Database(connect(parse_url(postgres_url)))
    mute = Database(connect(parse_url(f"sqlite:///{tmp_path / 'y.db'}")))
    go_on = threading.Event()
    statement = sa.text("SELECT pg_sleep(30)")
    with anyio.fail_after(6.0):
        async with anyio.create_task_group() as tasks:
            work = lambda: slow.read(lambda connection: connection.execute(statement))  # noqa: E731
            tasks.start_soon(give_up_on, slow, work, "canceling statement due to statement timeout")
            tasks.start_soon(give_up_on, mute, lambda: go_on.wait(20), "did not answer within")
    go_on.set()
    slow.close()
    mute.close()


def test_a_transaction_that_fails_changes_nothing(database: Database) -> None:
    def work(connection: sa.Connection) -> None:
        connection.execute(cluster.insert().values(key="a", value="1"))
        raise LookupError

    with pytest.raises(LookupError):
        database.write(work)
    assert database.read(lambda c: c.execute(sa.select(cluster)).all()) == []


def test_a_file_locked_by_another_process_is_one_clear_refusal(
    database: Database, tmp_path: Path
) -> None:
    """C070: the change is refused as a whole, and works once the lock is gone."""
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    insert = cluster.insert().values(key="a", value="1")
    with pytest.raises(StoreUnavailable, match="another process holds the database file locked"):
        database.write(lambda connection: connection.execute(insert))
    assert database.read(lambda c: c.execute(sa.select(cluster)).all()) == []
    other.execute("ROLLBACK")
    other.close()
    database.write(lambda connection: connection.execute(insert))


def test_an_error_holds_no_value_of_the_statement(database: Database) -> None:
    statement = sa.text("SELECT :secret FROM missing_table")
    with pytest.raises(StoreUnavailable) as caught:
        database.read(lambda connection: connection.execute(statement, {"secret": "hunter2"}))
    assert "hunter2" not in str(caught.value)


def test_a_database_host_that_is_gone_without_a_word_is_given_up_within_seconds(
    postgres_url: str,
) -> None:
    """Or nobody would lead for a quarter of an hour; the site's own word in the URL counts."""
    assert options_of(postgres_url)["tcp_user_timeout"] == 6000
    assert options_of(postgres_url)["keepalives_idle"] == 5
    sep = "&" if "?" in postgres_url else "?"
    theirs = options_of(f"{postgres_url}{sep}tcp_user_timeout=20000")
    assert int(theirs["tcp_user_timeout"]) == 20000


def options_of(url: str) -> dict[str, Any]:
    """Return what the driver is told, which takes it."""
    engine = connect(parse_url(url))
    told: dict[str, Any] = {}

    @sa.event.listens_for(engine, "do_connect")
    def note(_dialect: object, _record: object, _words: object, options: dict[str, Any]) -> None:
        told.update(options)

    with engine.connect():
        pass
    engine.dispose()
    return told
