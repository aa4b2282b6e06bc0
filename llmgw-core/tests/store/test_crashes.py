"""C070: a server killed at any moment leaves a store that opens, whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.store import open_store
from llmgw.testing.clock import FakeClock

WRITER = """
import itertools, sys
from pathlib import Path
from llmgw.clock import SystemClock
from llmgw.domain.catalog import Model
from llmgw.store import open_store

store = open_store(None, state_dir=Path(sys.argv[1]), clock=SystemClock())
store.leases.acquire("writer")
print("open", flush=True)
for number in itertools.count(store.catalog.version()):
    put = [Model(name=f"{side}-{number}") for side in ("left", "right")]
    gone = [entry.model.name for entry in store.catalog.entries()]
    store.catalog.apply(put, remove=gone, who="writer")
    print(number, flush=True)
"""


@pytest.mark.timeout(90)
def test_after_each_kill_the_store_opens_and_no_change_is_half_there(tmp_path: Path) -> None:
    confirmed = 0
    for kill in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                if line.strip() == "open":
                    continue
                confirmed = int(line)
                if confirmed % 7 == kill:
                    writer.send_signal(signal.SIGKILL)
                    break
        store = open_store(None, state_dir=tmp_path, clock=FakeClock())
        assert store.check() == ()
        names = sorted(entry.model.name for entry in store.catalog.entries())
        left, right = names
        assert left.removeprefix("left") == right.removeprefix("right")
        assert int(left.removeprefix("left-")) >= confirmed, "a confirmed change was lost"
        store.close()
