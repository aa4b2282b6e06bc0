"""Disks that fail in the middle of a start (F19): nothing orphaned, nothing twice, and it heals."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from llmgw.domain.replicas import ShardState
from llmgw_agent.node import processes, shim
from llmgw_agent.node.assignments import Assigned
from llmgw_agent.node.hands import Hands, NodeHands
from llmgw_agent.node.host import Host
from llmgw_agent.node.shardfolder import LaunchRecord, ShardFolder, ShimState


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace makes the system calls fail")
@pytest.mark.parametrize("call", ["fsync", "rename", "pwrite64"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_an_engine_runs_only_if_the_disk_says_which_one(
    tmp_path: Path, call: str, number: int
) -> None:
    cookie = f"{uuid.uuid4().hex}/r1.0"
    record = {
        "run": 1,
        "token": "t",
        "argv": ["sleep", "30"],
        "env": {"PATH": os.environ["PATH"], processes.COOKIE: cookie},
        "cwd": str(tmp_path),
        "port": 20000,
        "device_locks": [],
        "cgroup": None,
        "oom_score_adj": 500,
        "log_file_bytes": 1 << 20,
        "log_files": 5,
    }
    (tmp_path / "spec.json").write_text(json.dumps(record))
    failing = ["strace", "-qq", "-o", os.devnull, "-e", f"trace={call}"]
    failing += ["-e", f"inject={call}:error=EIO:when={number}"]
    command = [*failing, sys.executable, "-I", "-S", shim.__file__, str(tmp_path), "t"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 10
        while process.poll() is None and not (tmp_path / "state.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        told = ShardFolder(tmp_path).state()
        expected = {told.pid} if told else set()
        # A process that was sent SIGKILL takes a moment to be gone.
        running = _tree(cookie)
        while {item.pid for item in running} != expected and time.monotonic() < deadline:
            time.sleep(0.01)
            running = _tree(cookie)
        for item in running:
            processes.send_signal(item, signal.SIGKILL)
    assert {item.pid for item in running} == expected


def _tree(cookie: str) -> frozenset[processes.Process]:
    return processes.tree(processes.process_table(), cookie=cookie)


class FaultyFolder(ShardFolder):
    """Fails once, at one of its accesses."""

    def __init__(self, path: Path, faults: list[str]) -> None:
        super().__init__(path)
        self._faults = faults

    def _access(self, name: str) -> None:
        if name in self._faults:
            self._faults.remove(name)
            raise OSError(errno.EIO, "Input/output error")

    def prepare(self, record: LaunchRecord) -> None:
        self._access("prepare")
        super().prepare(record)

    def state(self) -> ShimState | None:
        self._access("state")
        return super().state()

    def mark_ready(self, run: int) -> None:
        self._access("mark ready")
        super().mark_ready(run)


@pytest.mark.anyio
@pytest.mark.parametrize("fault", ["prepare", "state", "mark ready"])
async def test_a_start_that_meets_a_failing_disk_comes_to_its_end_later(
    node: Any, spec: Any, fault: str
) -> None:
    faults = [fault]

    def make(host: Host, folder: ShardFolder, assigned: Assigned) -> Hands:
        return NodeHands(host=host, folder=FaultyFolder(folder.path, faults), assigned=assigned)

    node.make_hands = make
    async with node.running():
        await node.start(spec(children=1))
        await node.wait_state("r1.0", ShardState.READY)
        assert len(node.engine_processes("r1.0")) == 2
    assert faults == []
