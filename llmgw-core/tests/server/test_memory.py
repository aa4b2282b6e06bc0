"""What is free is given back, and what stays is not gone through again and again."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.server import memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, trims glibc's heap")


def resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line[:5] == "VmRSS") / 1024


def test_what_lies_between_is_given_back() -> None:
    """Blocks of 10 to 20 KB: too large for Python's own pools, too small for the system to map each."""
    blocks = [b"x" * number for number in range(10_000, 20_000)]
    kept = blocks[::100]
    del blocks
    before = resident_mib()
    memory.give_back()
    assert resident_mib() < before - 50
    assert len(kept) == 100


@pytest.fixture
def own_collector() -> Iterator[None]:
    """Leave the collector of the test run as it was."""
    before = list(gc.callbacks)
    yield
    gc.callbacks[:] = before
    gc.unfreeze()


@pytest.mark.usefixtures("own_collector")
def test_what_survives_a_long_collection_is_not_gone_through_again() -> None:
    kept = [[number] for number in range(1000)]
    gc.unfreeze()
    memory.set_aside_what_stays(long_s=0.0)
    gc.collect(1)
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert gc.get_freeze_count() > len(kept)


@pytest.mark.usefixtures("own_collector")
def test_a_short_collection_sets_nothing_aside() -> None:
    gc.unfreeze()
    memory.set_aside_what_stays(long_s=60.0)
    gc.collect()
    assert gc.get_freeze_count() == 0
