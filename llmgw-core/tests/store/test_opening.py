"""Opening a store: whose it is, which version it has, which secret it needs."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from llmgw.domain.secret import Secret
from llmgw.errors import ConfigError, NotAvailable, StoreUnavailable
from llmgw.store import Store, backup_store, open_store
from llmgw.store.database import connect, parse_url
from llmgw.store.migrate import migrate, stored_version
from llmgw.store.schema import SCHEMA_VERSION, metadata
from llmgw.testing.clock import FakeClock

sqlite_only = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)


def test_migrations_make_exactly_the_tables_of_the_schema(store_url: str) -> None:
    engine = connect(parse_url(store_url))
    assert migrate(engine) is None
    with engine.connect() as connection:
        assert stored_version(connection) == SCHEMA_VERSION
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_a_store_of_a_newer_llmgw_is_refused_and_left_alone(store_url: str, tmp_path: Path) -> None:
    engine = connect(parse_url(store_url))
    migrate(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigError, match=r"version 9999.*install the newer llmgw"):
        open_store(store_url, state_dir=tmp_path, clock=FakeClock())
    with engine.connect() as connection:
        assert stored_version(connection) == "9999"
    engine.dispose()


@sqlite_only
def test_a_second_server_on_one_file_is_refused_and_told_what_to_do(
    store: Store, open_: Callable[..., Store]
) -> None:
    with pytest.raises(ConfigError, match=r"in use by another llmgw server \(process \d+\)"):
        open_()


@sqlite_only
def test_a_closed_store_can_be_opened_again(open_: Callable[..., Store]) -> None:
    first = open_()
    cluster_id = first.cluster_id
    first.close()
    assert open_().cluster_id == cluster_id


@sqlite_only
def test_a_closed_store_answers_no_thread_whatever_number_the_system_gives_it(
    open_: Callable[..., Store],
) -> None:
    store = open_()
    store.close()
    for _ in range(20):  # a new thread each: one of them has the number of the store's own
        with ThreadPoolExecutor(1) as thread, pytest.raises(StoreUnavailable, match="closed"):
            thread.submit(store.catalog.entries).result()


def test_servers_of_one_store_share_cluster_id_and_authority(
    store_url: str, open_: Callable[..., Store]
) -> None:
    if store_url.startswith("sqlite"):
        one = open_()
        seen = (one.cluster_id, one.trust.pin)
        one.close()
        two = open_()
    else:
        one, two = open_(), open_()
        seen = (one.cluster_id, one.trust.pin)
    assert (two.cluster_id, two.trust.pin) == seen


def test_a_new_store_makes_a_secret_that_only_its_user_reads(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "state" / "cluster.secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text().strip()) >= 32


@sqlite_only
def test_without_its_secret_a_store_does_not_open(
    open_: Callable[..., Store], tmp_path: Path
) -> None:
    open_().close()
    (tmp_path / "state" / "cluster.secret").unlink()
    with pytest.raises(ConfigError, match="is missing, and the keys in the store"):
        open_()
    with pytest.raises(ConfigError, match="does not fit this store"):
        open_(cluster_secret=Secret("another secret, long enough"))


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/d", "sqlite://", "nonsense hunter2"])
def test_a_url_of_no_use_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError, match="must be sqlite:") as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)


def test_a_postgres_that_is_not_there_is_said_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        open_store("postgresql://u:hunter2@127.0.0.1:1/d", state_dir=tmp_path, clock=FakeClock())
    assert "hunter2" not in str(caught.value)


def test_a_sound_store_has_nothing_to_complain_of(store: Store) -> None:
    assert store.check() == ()


@sqlite_only
def test_a_backup_is_a_store_of_its_own(store: Store, store_url: str, tmp_path: Path) -> None:
    store.events.add("node_lost", "node gpu-01", "gone")
    target, state_dir = tmp_path / "backup.db", tmp_path / "state"
    backup_store(store_url, state_dir=state_dir, target=target)
    with pytest.raises(ConfigError, match="exists already"):
        backup_store(store_url, state_dir=state_dir, target=target)
    copy = open_store(f"sqlite:///{target}", state_dir=state_dir, clock=FakeClock())
    assert [event.kind for event in copy.events.list()] == ["node_lost"]
    copy.close()


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_backup_of_postgres_is_left_to_its_own_tool(store_url: str, tmp_path: Path) -> None:
    with pytest.raises(NotAvailable, match="pg_dump"):
        backup_store(store_url, state_dir=tmp_path, target=tmp_path / "backup")


def test_a_file_of_something_else_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        open_store(f"sqlite:///{path}", state_dir=tmp_path, clock=FakeClock())


@sqlite_only
def test_a_start_that_has_nothing_to_migrate_does_not_import_alembic(
    open_: Callable[..., Store], tmp_path: Path
) -> None:
    import subprocess

    open_().close()
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from llmgw.clock import SystemClock\n"
        "from llmgw.store import open_store\n"
        f"open_store('sqlite:///{tmp_path}/store.db', state_dir=Path('{tmp_path}/state'), "
        "clock=SystemClock()).close()\n"
        "assert 'alembic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_sqlite_is_durable_and_readers_do_not_block_writers(store: Store, store_url: str) -> None:
    if not store_url.startswith("sqlite"):
        return
    with connect(parse_url(store_url)).connect() as connection:
        pragmas = [
            connection.execute(sa.text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous")
        ]
    assert pragmas == ["wal", 2]
