"""The shim as the agent runs it: a program of its own, on a folder."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw_agent.node import processes, shim

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a shim on `tmp_path` for a shell line; keywords go to its launch record."""
    started: list[subprocess.Popen[bytes]] = []

    def run(
        line: str,
        *,
        limit: str = "true",
        meant_for: str = "t",
        **fields: Any,
    ) -> "subprocess.Popen[bytes]":
        record = {
            "run": 1,
            "argv": ["/bin/sh", "-c", line],
            "env": {"PATH": os.environ["PATH"]},
            "cwd": str(tmp_path),
            "port": 20000,
            "token": "t",
            "device_locks": [],
            "cgroup": None,
            "oom_score_adj": 500,
            "log_file_bytes": 1 << 20,
            "log_files": 5,
            **fields,
        }
        (tmp_path / "spec.json").write_text(json.dumps(record))
        words = [sys.executable, "-I", "-S", shim.__file__, str(tmp_path), meant_for]
        command = ["/bin/sh", "-c", f'{limit}; exec "$0" "$@"', *words]
        process = subprocess.Popen(command, start_new_session=True, env={})
        started.append(process)
        return process

    yield run
    for process in started:
        state = read(tmp_path / "state.json")
        if state is not None and (main := processes.find(state["pid"])) is not None:
            processes.send_signal(main, signal.SIGKILL)
        process.kill()
        process.wait()


def read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def wait_for(condition: Callable[[], Any], limit_s: float = 5) -> Any:
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.005)
    return value


def output(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / "log").glob("*.log")))


def test_it_tells_who_runs_and_how_it_ended(start: Start, tmp_path: Path) -> None:
    process = start("echo out; echo err >&2; sleep 0.3; exit 7")
    state = wait_for(lambda: read(tmp_path / "state.json"))
    main = processes.find(state["pid"])
    assert main is not None
    assert main.start_time == state["start_time"]
    assert state["boot_id"] == processes.boot_id()
    assert os.getsid(state["pid"]) == state["pid"]
    assert process.wait(5) == 0
    assert read(tmp_path / "exit.json")["exit_code"] == 7
    assert output(tmp_path) == b"out\nerr\n"


def test_a_signal_is_told_as_a_negative_number(start: Start, tmp_path: Path) -> None:
    start("kill -ILL $$").wait(5)
    assert read(tmp_path / "exit.json")["exit_code"] == -signal.SIGILL


def test_a_program_that_does_not_exist_is_refused_with_its_name(
    start: Start, tmp_path: Path
) -> None:
    assert start("", argv=["/no/such/engine"]).wait(5) == 0
    end = read(tmp_path / "exit.json")
    assert end["refusal"] == "exec_failed"
    assert "/no/such/engine" in end["message"]
    assert read(tmp_path / "state.json") is None


def test_a_worker_in_its_own_session_keeps_the_lock_after_the_main_process_ended(
    start: Start, tmp_path: Path
) -> None:
    process = start("setsid sleep 1 & exit 3")
    state = wait_for(
        lambda: (s := read(tmp_path / "state.json")) and s["main_exit"] is not None and s
    )
    assert state["main_exit"] == 3
    with (tmp_path / "lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert read(tmp_path / "exit.json") is None
    assert process.wait(5) == 0
    assert read(tmp_path / "exit.json")["exit_code"] == 3


def test_the_engine_does_not_inherit_the_lock(start: Start, tmp_path: Path) -> None:
    process = start("sleep 5")
    state = wait_for(lambda: read(tmp_path / "state.json"))
    descriptors = {str(path.readlink()) for path in Path(f"/proc/{state['pid']}/fd").iterdir()}
    assert not any(str(tmp_path / "lock") in item for item in descriptors)
    process.kill()
    process.wait()
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_shim_that_another_record_has_overtaken_starts_nothing(
    start: Start, tmp_path: Path
) -> None:
    assert start("sleep 5", meant_for="old").wait(5) == shim.SUPERSEDED
    assert read(tmp_path / "state.json") is None


def test_a_second_shim_on_one_folder_ends_after_a_moment(start: Start, tmp_path: Path) -> None:
    start("sleep 5")
    wait_for(lambda: read(tmp_path / "state.json"))
    assert start("sleep 5").wait(5) == shim.ALREADY_RUNNING


def test_a_cgroup_that_cannot_be_joined_does_not_keep_the_engine_from_running(
    start: Start, tmp_path: Path
) -> None:
    start("exit 7", cgroup="/no/such/cgroup").wait(5)
    assert read(tmp_path / "exit.json")["exit_code"] == 7


def test_a_device_that_another_engine_holds_is_refused(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "GPU-1.lock"
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert start("sleep 5", device_locks=[str(path)]).wait(5) == 0
    assert read(tmp_path / "exit.json")["refusal"] == shim.DEVICE_BUSY


def test_output_is_bounded_and_the_newest_is_kept(start: Start, tmp_path: Path) -> None:
    start("seq 1 40000", log_file_bytes=20_000, log_files=3).wait(10)
    assert len(list((tmp_path / "log").glob("*.log"))) == 3
    assert output(tmp_path).endswith(b"39999\n40000\n")
    assert len(output(tmp_path)) < 3 * (20_000 + (1 << 16))


def test_each_run_writes_to_a_file_of_its_own(start: Start, tmp_path: Path) -> None:
    start("echo first").wait(5)
    start("echo second", run=2).wait(5)
    first = read(tmp_path / "exit.json")["first_log"]
    assert (tmp_path / "log" / f"{first:08d}.log").read_bytes() == b"second\n"


def test_it_ignores_the_signals_that_end_an_agent(start: Start, tmp_path: Path) -> None:
    process = start("sleep 0.5")
    wait_for(lambda: read(tmp_path / "state.json"))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process.send_signal(number)
    assert process.wait(5) == 0


def test_output_that_the_disk_does_not_take_is_counted_and_the_engine_goes_on(
    start: Start, tmp_path: Path
) -> None:
    """A file limit of 8 KiB stands in for a full disk: each write past it fails."""
    start("seq 1 20000; exit 5", limit="ulimit -f 16").wait(5)
    end = read(tmp_path / "exit.json")
    assert end["exit_code"] == 5
    written = len(output(tmp_path))
    assert end["dropped_bytes"] + written == len("".join(f"{n}\n" for n in range(1, 20001)))
    assert written <= 8192


def test_the_end_is_written_in_room_that_was_taken_at_the_start(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        record = shim.Record("exit.json")
        assert (tmp_path / ".exit.json.new").stat().st_blocks * 512 >= 4096
        record.write({"exit_code": 1})
    assert read(tmp_path / "exit.json") == {"exit_code": 1}


def test_it_is_small_and_quick(start: Start, tmp_path: Path) -> None:
    """At most 8 MB, beside an agent that runs the same Python, as in real life."""
    process = start("sleep 5")
    wait_for(lambda: read(tmp_path / "state.json"))
    fields = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    pss_kb = next(int(line.split()[1]) for line in fields.splitlines() if line.startswith("Pss:"))
    assert pss_kb <= 8 * 1024
