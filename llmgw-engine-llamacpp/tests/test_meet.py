"""The head of a replica over several nodes, which must not begin before its workers."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from llmgw_engine_llamacpp import argv

MEET = Path(argv.__file__).with_name("meet.py")


def test_the_program_begins_once_every_worker_listens() -> None:
    with socket.socket() as worker:
        worker.bind(("127.0.0.1", 0))  # taken, but not listening yet
        place = f"127.0.0.1:{worker.getsockname()[1]}"
        program = (sys.executable, "-c", "print('begun')")
        head = subprocess.Popen(
            (sys.executable, "-I", str(MEET), place, "--", *program),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            head.wait(1.0)
            raise AssertionError("it did not wait")
        except subprocess.TimeoutExpired:
            worker.listen()
        said, _ = head.communicate(timeout=15)
    assert said == "begun\n"
    assert head.returncode == 0
