"""Every test of the store runs on SQLite and on a real PostgreSQL.

Each test gets its own database; where PostgreSQL comes from: `llmgw.testing.pytest_plugin`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmgw.store import Store, open_store
from llmgw.testing.clock import FakeClock

OpenStore = Callable[..., Store]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
