"""What is free is given back, also where it lies between what is not."""

from __future__ import annotations

import sys
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
