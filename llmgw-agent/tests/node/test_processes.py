"""Proofs about real processes."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llmgw_agent.node import processes
from llmgw_agent.node.processes import Listener, Process


@pytest.fixture
def spawned() -> Iterator[list["subprocess.Popen[bytes]"]]:
    made: list[subprocess.Popen[bytes]] = []
    yield made
    for process in made:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def sleeper(
    made: list["subprocess.Popen[bytes]"], *, cookie: str | None = None, line: str = "sleep 30"
) -> Process:
    env = {"PATH": os.environ["PATH"]} | ({processes.COOKIE: cookie} if cookie else {})
    process = subprocess.Popen(["/bin/sh", "-c", line], env=env, start_new_session=True)
    made.append(process)
    found = processes.find(process.pid)
    assert found is not None
    return found


def test_a_reused_pid_is_another_process(spawned: list["subprocess.Popen[bytes]"]) -> None:
    real = sleeper(spawned)
    stale = Process(real.pid, real.start_time - 1)
    assert processes.is_alive(real)
    assert not processes.is_alive(stale)
    assert not processes.send_signal(stale, signal.SIGKILL)
    assert processes.open_pidfd(stale) is None
    assert processes.is_alive(real)


def test_a_zombie_is_not_alive(spawned: list["subprocess.Popen[bytes]"]) -> None:
    real = sleeper(spawned)
    processes.send_signal(real, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while processes.is_alive(real):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert real.pid not in processes.process_table()


def test_a_tree_is_found_by_cookie_whatever_its_sessions(
    spawned: list["subprocess.Popen[bytes]"],
) -> None:
    main = sleeper(spawned, cookie="me/s1", line="setsid sleep 30 & sleep 30 & wait")
    other = sleeper(spawned, cookie="other/s1")
    deadline = time.monotonic() + 5
    while len(found := processes.tree(processes.process_table(), cookie="me/s1")) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert main in found
    assert other not in found
    for process in found:
        processes.send_signal(process, signal.SIGKILL)


def test_descendants_that_lost_their_cookie_still_belong_to_the_tree(
    spawned: list["subprocess.Popen[bytes]"],
) -> None:
    main = sleeper(spawned, cookie="me/s2", line=f"env -u {processes.COOKIE} sleep 30 & wait")
    deadline = time.monotonic() + 5
    while len(processes.tree(processes.process_table(), cookie="me/s2")) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    table = processes.process_table()
    (child,) = processes.children(table, main)
    assert table[child.pid].cookie is None
    assert child in processes.tree(table, cookie="me/s2")
    processes.send_signal(child, signal.SIGKILL)


def test_another_agents_child_is_never_taken_for_ours(
    spawned: list["subprocess.Popen[bytes]"],
) -> None:
    sleeper(spawned, cookie="me/s3", line=f"{processes.COOKIE}=you/s3 sleep 30 & wait")
    deadline = time.monotonic() + 5
    while not processes.tree(processes.process_table(), cookie="you/s3"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    table = processes.process_table()
    theirs = processes.tree(table, cookie="you/s3")
    assert not theirs & processes.tree(table, cookie="me/s3")
    for process in theirs:
        processes.send_signal(process, signal.SIGKILL)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_listening_socket_belongs_to_whoever_holds_its_inode(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    me = processes.find(os.getpid())
    assert me is not None
    with socket.socket(family) as server:
        server.bind((address, 0))
        server.listen()
        port = server.getsockname()[1]
        assert processes.listener(port, address, [me]) is Listener.OURS
        assert processes.listener(port, address, []) is Listener.FOREIGN
    assert processes.listener(port, address, [me]) is Listener.NOBODY


def test_a_reading_serves_all_who_ask_within_its_age() -> None:
    readings = iter(range(100))
    shared, fresh = (
        processes.Recent(lambda: next(readings), max_age_s=max_age_s) for max_age_s in (60, -1)
    )
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: shared(), range(64))) == {0}
    assert [fresh(), fresh()] == [1, 2]


def test_a_foreign_socket_on_the_exact_address_beats_our_wildcard() -> None:
    with socket.socket() as wide:
        wide.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        wide.bind(("0.0.0.0", 0))
        wide.listen()
        port = wide.getsockname()[1]
        code = (
            "import socket, time; s = socket.socket();"
            "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1);"
            f"s.bind(('127.0.0.1', {port})); s.listen(); print(1, flush=True); time.sleep(30)"
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as foreign:
            assert foreign.stdout is not None
            foreign.stdout.readline()
            me = processes.find(os.getpid())
            assert me is not None
            found = processes.listener(port, "127.0.0.1", [me])
            foreign.kill()
    assert found is Listener.FOREIGN


def test_a_scan_of_the_process_table_takes_milliseconds() -> None:
    processes.process_table()
    begin = time.perf_counter()
    table = processes.process_table()
    assert time.perf_counter() - begin < 0.25
    assert os.getpid() in table


def test_the_start_of_a_process_is_told_in_unix_seconds() -> None:
    me = processes.find(os.getpid())
    assert me is not None
    age_s = time.time() - processes.started_at(me)
    assert -2 < age_s < float(Path("/proc/uptime").read_text().split()[0]) + 2


def test_an_agent_that_can_open_no_file_takes_nobody_for_dead() -> None:
    """F21: else it would end and restart every engine that runs well."""
    me = processes.find(os.getpid())
    assert me is not None
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        for question in (processes.is_alive, processes.open_pidfd):
            with pytest.raises(OSError, match="Too many open files"):
                question(me)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert processes.is_alive(me)
