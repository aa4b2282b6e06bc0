"""A cluster to break: real processes, real signals, and the figures of what it took."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmgw.testing.fleet import Fleet
from llmgw.testing.wires import Wires, can_make_wires

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


@pytest.fixture
def wires() -> Iterator[Wires]:
    """A hub and two machines, `a` and `b`."""
    if not can_make_wires():
        pytest.skip("needs root, iproute2 and nftables")
    made = Wires(f"lc{os.getpid()}", ("a", "b"))
    try:
        made.make()
        yield made
    finally:
        made.remove()
