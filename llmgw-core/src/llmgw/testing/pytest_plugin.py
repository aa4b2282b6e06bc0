"""Fixtures for tests of llmgw and of its plugins; loaded by pytest by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from llmgw.testing.clock import FakeClock


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
