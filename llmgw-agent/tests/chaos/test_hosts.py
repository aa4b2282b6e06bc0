"""A machine that runs out of disk or of files, and nodes that fall silent."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.fleet import Fleet, Server, ask
from llmgw.testing.notified import NotifySocket
from llmgw.testing.site import seconds_until, wait_for
from llmgw.testing.streams import StreamLoad

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = 20
FULL_S = 20.0  #: for how long nothing more fits

Figures = Callable[..., None]


@contextmanager
def small_disk(fleet: Fleet, folder: str, size: str) -> Iterator[None]:
    """Put a folder of the fleet on a disk of its own, until the fleet has ended."""
    path = fleet.home / folder
    path.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "chaos", path], check=True)
    try:
        yield
    finally:
        fleet.close()  # while it can still be read there which processes are its own
        subprocess.run(["umount", "--lazy", path], check=True)


def fill(path: Path) -> Path:
    """Take every byte that is left on the disk of `path`."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return filler


def add_model(server: Server, model: dict[str, Any]) -> None:
    """Have one more model served, by the file that the server follows."""
    server.serve_models([*json.loads(server.config.read_text())["models"], model])


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@needs_root
def test_a_full_disk_on_a_node_reaches_no_stream(fleet: Fleet, figures: Figures) -> None:
    """F18: disk full: log and state of an agent."""
    with small_disk(fleet, "agent-node-0", "4m"):
        server = fleet.server(
            [fleet.model("m", replicas=2, tokens=20, token_delay=0.25, say_every=0.01)]
        )
        agent = fleet.agent()
        before = fleet.wait_ready(2)
        with StreamLoad([server.target], model="m", count=STREAMS) as load:
            filler = fill(agent.state_dir)
            add_model(server, fleet.model("late"))
            reason = wait_for("the reason is told", lambda: told_of(server, "late"), 60)
            time.sleep(FULL_S)
            assert server.ready() == before
            filler.unlink()
            healed_s = seconds_until("the late one runs", lambda: len(server.ready()) == 3, 120)
        assert load.broken == ()
        assert before.items() <= server.ready().items()
        figures(
            F18=f"node's disk full for {FULL_S:.0f} s: 0 of {load.whole} streams broken, 0 "
            f"restarts; told as {reason!r}; what waited ran {healed_s} s after there was room"
        )


def told_of(server: Server, model: str) -> str:
    """Why this model does not run, as the server tells its operators."""
    words = []
    for item in server.peek("/replicas")["replicas"]:
        if item["model"] == model:
            words += [item["reason"], *(shard["message"] for shard in item["shards"])]
    words.append(json.dumps(server.peek(f"/explain/model/{model}") or ""))
    words += [line for line in server.text.splitlines() if model in line]
    found = next((text for text in words if "no room on the disk" in text.lower()), "")
    at = max(0, found.lower().find("no room on the disk"))
    return found[at : at + 90]


@needs_root
def test_a_full_disk_of_a_server_refuses_changes_and_serves(fleet: Fleet, figures: Figures) -> None:
    """F18: disk full: store, and the router's last table."""
    with small_disk(fleet, "server-0", "6m"):
        server = fleet.server([fleet.model("m", replicas=2, tokens=20, token_delay=0.25)])
        fleet.agent()
        before = fleet.wait_ready(2)
        with StreamLoad([server.target], model="m", count=STREAMS) as load:
            filler = fill(server.state_dir)
            cordon = ("POST", "/nodes/node-0/cordon", {"reason": "chaos"})
            refused = [server.send(*cordon) for _ in range(3)]
            time.sleep(FULL_S)
            assert server.ready() == before
            filler.unlink()
            healed_s = seconds_until(
                "changes are taken", lambda: server.send(*cordon).is_success, 60
            )
        assert load.broken == ()
        assert server.ready() == before
        statuses = [reply.status_code for reply in refused]
        figures(
            **{
                "F18 server": f"changes on a full disk: {statuses} "
                f"{refused[-1].text[:160]!r}; taken {healed_s} s after there was room; 0 of "
                f"{load.whole} streams broken"
            }
        )
        assert all(status in (200, 503) for status in statuses)


def test_an_agent_without_files_to_open_keeps_its_engines_and_heals(
    fleet: Fleet, figures: Figures
) -> None:
    """F21: out of files."""
    server = fleet.server([fleet.model("m", replicas=2, tokens=20, token_delay=0.25)])
    agent = fleet.agent()
    before = fleet.wait_ready(2)
    limits = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    with StreamLoad([server.target], model="m", count=STREAMS) as load:
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        add_model(server, fleet.model("late"))
        time.sleep(FULL_S)
        assert agent.running is not None
        assert agent.running.process.poll() is None, agent.text[-2000:]
        told = [line for line in agent.text.splitlines() if "open files" in line]
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, limits)
        healed_s = seconds_until("the late one runs", lambda: len(server.ready()) == 3, 120)
    assert load.broken == ()
    assert before.items() <= server.ready().items()
    assert told
    figures(
        F21=f"an agent that may open nothing for {FULL_S:.0f} s: it lives, 0 of {load.whole} "
        f"streams broken, 0 restarts; what waited ran {healed_s} s after; told: {told[0][-120:]}"
    )


CGROUPS = Path("/sys/fs/cgroup")


def has_cgroup(controller: str) -> bool:
    return os.geteuid() == 0 and (CGROUPS / controller / "cgroup.procs").exists()


@contextmanager
def cgroup(controller: str, *, limits: dict[str, str], pid: int) -> Iterator[Path]:
    """Hold one process to these limits; what it has started before is not held, nor is its use."""
    group = CGROUPS / controller / f"llmgw-chaos-{os.getpid()}"
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):  # it has just ended
                (group.parent / "cgroup.procs").write_text(left)
        wait_for("the group is empty", lambda: not (group / "cgroup.procs").read_text(), 10)
        group.rmdir()


@pytest.mark.skipif(not has_cgroup("pids"), reason="needs root and cgroups of version 1")
def test_an_agent_without_threads_to_start_takes_no_engine_with_it(
    fleet: Fleet, figures: Figures, tmp_path: Path
) -> None:
    """F21: out of threads, and of processes.

    gRPC ends a process in which it can start no thread, or holds it for ever while a channel
    closes. What must not happen is that an engine feels it, that the next agent takes one for
    dead, or that systemd hears of one that is held that it lives.
    """
    server = fleet.server([fleet.model("m", replicas=2, tokens=20, token_delay=0.25)])
    systemd = NotifySocket(tmp_path / "notify", watchdog_s=4)
    agent = fleet.agent(env=systemd.env)
    before = fleet.wait_ready(2)
    with (
        systemd,
        StreamLoad([server.target], model="m", count=STREAMS) as load,
        cgroup("pids", limits={"pids.max": "max"}, pid=agent.pid) as group,
    ):
        (group / "pids.max").write_text((group / "pids.current").read_text())
        assert "WATCHDOG=1" in systemd.heard()
        add_model(server, fleet.model("late"))
        time.sleep(FULL_S)
        signs = systemd.heard().count("WATCHDOG=1")
        denied = int((group / "pids.events").read_text().split()[1])
        (group / "pids.max").write_text("max")
        assert agent.running is not None
        ended = agent.running.process.poll()
        agent.kill()
        agent.start()
        healed_s = seconds_until("the late one runs", lambda: len(server.ready()) == 3, 120)
    assert load.broken == ()
    assert before.items() <= server.ready().items()
    assert denied
    assert signs <= 2, "of before it was held"
    figures(
        **{
            "F21 threads": f"an agent that may start no thread and no process for {FULL_S:.0f} s "
            f"({'held by gRPC' if ended is None else f'ended, status {ended}'}): 0 of "
            f"{load.whole} streams broken, 0 restarts; what waited ran {healed_s} s after"
        }
    )


@pytest.mark.skipif(not has_cgroup("memory"), reason="needs root and cgroups of version 1")
def test_an_engine_that_the_kernel_ends_for_its_memory_takes_nobody_with_it(
    fleet: Fleet, figures: Figures
) -> None:
    """F21: OOM kill of an engine."""
    server = fleet.server(
        [fleet.model("big"), fleet.model("m", replicas=2, tokens=20, token_delay=0.25)]
    )
    agent = fleet.agent()
    before = fleet.wait_ready(3)
    (victim,) = (shard for shard in before if shard.startswith("big-"))
    with StreamLoad([server.target], model="m", count=STREAMS) as load:
        with cgroup(
            "memory", limits={"memory.limit_in_bytes": "65536"}, pid=before[victim]
        ) as group:
            ask(server.target, "big")  # which needs a thread there, and its stack
            seen_s = seconds_until("it is seen", lambda: server.restarts(victim), 20)
            assert "oom_kill 0" not in (group / "memory.oom_control").read_text()
        back_s = seconds_until("it is back", lambda: len(server.ready()) == 3, 60)
        assert ask(server.target, "big").status_code == 200
    assert load.broken == ()
    assert {key: pid for key, pid in before.items() if key != victim}.items() <= (
        server.ready().items()
    )
    cause = server.shards()[victim]["cause"]
    assert agent.running is not None
    assert agent.running.process.poll() is None
    figures(
        **{
            "F21 memory": f"killed by the kernel: seen after {seen_s} s as {cause}, ready again "
            f"{back_s} s later; 0 of {load.whole} other streams broken, 0 other restarts"
        }
    )


def test_most_nodes_silent_at_once_move_nothing_and_one_alone_is_replaced(
    fleet: Fleet, figures: Figures
) -> None:
    """F14: 60 % of nodes silent at once."""
    server = fleet.server(
        [],
        control={
            "placement_policy": "spread",
            "suspect_after": "8s",
            "disconnected_after": "12s",
            "lost_after": "20s",
        },
    )
    for _ in range(5):
        fleet.agent()
    wait_for("all nodes are there", lambda: len(server.get("/nodes")["nodes"]) == 5, 60)
    server.serve_models([fleet.model("m", replicas=5, tokens=20, token_delay=0.25)])
    before = fleet.wait_ready(5)
    began = time.monotonic()
    with StreamLoad([server.target], model="m", count=STREAMS) as load:
        time.sleep(max(0.0, 92 - (time.monotonic() - began)))  # the grace of a new leadership
        for agent in fleet.agents[:3]:
            agent.freeze()
        time.sleep(45)
        states = sorted(item["state"] for item in server.get("/nodes")["nodes"])
        moved = set(server.shards()) - set(before)
        for agent in fleet.agents[:3]:
            agent.thaw()
        wait_for("all are back", lambda: all_ready(server), 60)
        assert server.ready() == before
        time.sleep(61)  # two silences further apart than the brake's window
        fleet.agents[0].freeze()
        lost_s = seconds_until("it is lost", lambda: server.node_state("node-0") == "lost", 60)
        wait_for("a replacement is ready", lambda: len(set(server.ready()) - set(before)), 60)
        fleet.agents[0].thaw()
        wait_for("all are back", lambda: all_ready(server), 60)
        wait_for("one copy of each is left", lambda: len(server.ready()) == 5, 120)
    assert states == ["disconnected"] * 3 + ["ready"] * 2
    assert moved == set()
    assert load.broken == ()
    figures(
        F14=f"3 of 5 nodes silent for 45 s with lost_after 20 s: {states}, 0 replicas moved; one "
        f"alone: lost after {lost_s} s, replaced, the surplus resolved once it was back; 0 of "
        f"{load.whole} streams broken"
    )


def all_ready(server: Server) -> bool:
    return {item["state"] for item in server.get("/nodes")["nodes"]} == {"ready"}
