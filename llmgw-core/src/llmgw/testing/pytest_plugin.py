"""Fixtures for tests of llmgw and of its plugins; loaded by pytest by itself."""

from __future__ import annotations

import pytest

from llmgw.testing.clock import FakeClock


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock that moves only when told to."""
    return FakeClock()
