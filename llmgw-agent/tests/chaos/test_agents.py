"""What happens to an agent, its shims and engines on one node."""

from __future__ import annotations

import os
import re
import signal
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.fleet import Agent, Fleet, Server, ask
from llmgw.testing.site import seconds_until, wait_for
from llmgw.testing.streams import StreamLoad

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("LLMGW_CHAOS_KILLS", "20"))

Figures = Callable[..., None]


def start_ticks(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def shim_of(agent: Agent, engine: int) -> int:
    """The parent of an engine."""
    return int(Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[1])


def test_killing_every_agent_again_and_again_restarts_no_engine_and_loses_no_line(
    fleet: Fleet, figures: Figures
) -> None:
    """F4: kill -9 every agent, restart, ×20 here (LLMGW_CHAOS_KILLS=100: as in the table)."""
    models = [
        fleet.model(f"m{number}", labels={"part": part}, say_every=0.01, token_delay=0.05)
        for number, part in enumerate("aabb")
    ]
    server = fleet.server(models)
    for part in "ab":
        fleet.agent("--label", f"part={part}")
    before = fleet.wait_ready(4)
    ticks = {pid: start_ticks(pid) for pid in before.values()}
    took: list[float] = []
    with StreamLoad([server.target], model="m0", count=10, tokens=40) as load:
        for _ in range(KILLS):
            for agent in fleet.agents:
                agent.kill()
            began = time.monotonic()
            for agent in fleet.agents:
                agent.start()
            for agent in fleet.agents:
                wait_for("all are adopted", partial(has_adopted, agent, set(before.values())), 10)
            took.append(time.monotonic() - began)
    assert fleet.wait_ready(4) == before
    assert {pid: start_ticks(pid) for pid in before.values()} == ticks
    assert load.broken == ()
    lines = sum(count_lines(agent, shard) for agent in fleet.agents for shard in shards_of(agent))
    figures(
        F4=f"{KILLS} kills of 2 agents with 4 engines: 0 restarts, 0 of {lines} log lines lost, "
        f"0 of {load.whole} streams broken; adopted in {statistics.median(took):.1f} s (median), "
        f"{max(took):.1f} s at most"
    )
    # The bar is 3 s. Two interpreters that start with gRPC are most of it, and a busy machine may
    # take twice as long for them.
    assert statistics.median(took) <= 6.0


def has_adopted(agent: Agent, pids: set[int]) -> bool:
    status = agent.status()
    if status.get("pid") != agent.pid:
        return False
    shards = [item["shard"] for item in status["shards"]]
    return len(shards) == 2 and all(
        item["state"] == "ready" and item["pid"] in pids for item in shards
    )


def shards_of(agent: Agent) -> list[Path]:
    return sorted((agent.state_dir / "shards").iterdir())


def count_lines(agent: Agent, shard: Path) -> int:
    """Return how many numbered lines its log has. Every number up to the last one is there."""
    log = b"".join(path.read_bytes() for path in sorted((shard / "log").iterdir()))
    numbers = [int(found) for found in re.findall(rb"line (\d+)\n", log)]
    assert numbers == list(range(len(numbers)))
    return len(numbers)


def test_an_engine_whose_main_process_is_killed_leaves_nothing_and_starts_anew(
    fleet: Fleet, figures: Figures
) -> None:
    """F9: kill -9 engine main only, workers live."""
    server = fleet.server([fleet.model("m", children=3, ignore_term=True)])
    agent = fleet.agent()
    (shard, pid), *_ = fleet.wait_ready(1).items()
    old = set(agent.tree()) - {shim_of(agent, pid)}
    assert len(old) == 4
    os.kill(pid, signal.SIGKILL)
    seen_s = seconds_until("it is seen", lambda: server.restarts(shard) == 1, 10)
    at_start: list[int] = []

    def new_engine() -> int | None:
        mains = [other for other in agent.tree() if other not in old and is_engine(other)]
        if mains and not at_start:
            at_start.extend(other for other in old if is_running(other))
        return server.ready().get(shard) if mains else None

    ready_s = seconds_until("another one is ready", new_engine, 60)
    assert at_start == [], "a worker of the dead engine was alive when the next one started"
    assert ask(server.target, "m").status_code == 200
    figures(F9=f"seen in {seen_s} s, its 3 workers gone before the new start, ready in {ready_s} s")
    assert seen_s <= 2.0


def is_engine(pid: int) -> bool:
    try:
        return b"fake_engine.py" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1]
    except (OSError, IndexError):
        return False


def test_an_engine_whose_shim_is_killed_is_ended_and_started_anew(
    fleet: Fleet, figures: Figures
) -> None:
    """F10: kill -9 shim."""
    server = fleet.server([fleet.model("m", children=3, ignore_term=True)])
    agent = fleet.agent()
    (shard, pid), *_ = fleet.wait_ready(1).items()
    old = agent.tree()
    os.kill(shim_of(agent, pid), signal.SIGKILL)
    gone_s = seconds_until("its tree is gone", lambda: not any(map(is_running, old)), 20)
    wait_for("it says why", lambda: cause_of(server, shard) == "shim_lost", 20)
    again_s = seconds_until("another one is ready", lambda: server.ready().get(shard), 60)
    assert server.ready()[shard] != pid
    figures(F10=f"tree of 4 gone in {gone_s} s, told as shim_lost, ready again {again_s} s later")
    assert gone_s <= 5.0


def cause_of(server: Server, shard: str) -> str | None:
    found = server.shards().get(shard)
    return found["cause"] if found else None


def test_a_frozen_agent_costs_no_stream_and_is_back_at_once(fleet: Fleet, figures: Figures) -> None:
    """F5: SIGSTOP agent 60 s."""
    server = fleet.server([fleet.model("m", replicas=2, tokens=40, token_delay=0.25)])
    agent = fleet.agent()
    before = fleet.wait_ready(2)
    with StreamLoad([server.target], model="m", count=40, tokens=40) as load:
        agent.freeze()
        began = time.monotonic()
        silent_s = seconds_until(
            "it is disconnected", partial(is_in, server, agent.name, "disconnected"), 60
        )
        time.sleep(max(0.0, 60 - (time.monotonic() - began)))
        agent.thaw()
        back_s = seconds_until("it is ready", partial(is_in, server, agent.name, "ready"), 30)
    assert server.ready() == before
    assert load.broken == ()
    figures(
        F5=f"disconnected after {silent_s} s, ready {back_s} s after it went on; 0 restarts, "
        f"0 of {load.whole} streams broken (40 at a time)"
    )
    assert 40 <= silent_s <= 50
    assert back_s <= 5.0


def is_in(server: Server, node: str, state: str) -> bool:
    return server.node_state(node) == state


@pytest.mark.parametrize("lies", [False, True], ids=["frozen", "healthy-on-paper"])
def test_an_engine_that_stands_still_is_left_out_and_replaced(
    fleet: Fleet, figures: Figures, lies: bool
) -> None:
    """F8: SIGSTOP an engine (also: `/health` alive, tokens still)."""
    options: dict[str, Any] = {"tokens": 40, "token_delay": 0.25}
    server = fleet.server([fleet.model("m", replicas=2, **options)])
    fleet.agent()
    before = fleet.wait_ready(2)
    (shard, pid), *_ = before.items()
    replica = shard.rpartition(".")[0]
    with StreamLoad([server.target], model="m", count=16, tokens=40) as load:
        wait_for("streams flow", lambda: load.whole >= 16, 60)
        if lies:
            hang_tokens(fleet.agents[0], server.shards()[shard])
        else:
            os.kill(pid, signal.SIGSTOP)
        out_s = seconds_until("it is not ready", lambda: replica not in server.usable("m"), 100)
        restart_s = out_s + seconds_until(
            "it is restarted", lambda: server.restarts(shard) >= 1, 150
        )
        wait_for("both are ready", lambda: len(server.ready()) == 2, 60)
        asked = ask(server.target, "m")
    assert asked.status_code == 200
    later = [item for item in load.broken if not item.reached_client]
    figures(
        F8=f"{'tokens still, health alive' if lies else 'stopped'}: not ready after {out_s:.0f} s, "
        f"restarted after {restart_s:.0f} s; {len(load.broken)} streams broken that it had begun, "
        f"{len(later)} others, {load.whole} whole"
    )
    # Requests that wait on it for their first byte are tried again only within the budget.
    assert all("first_byte_timeout" in item.problem for item in later), later
    assert out_s <= 65
    assert restart_s <= 130


def hang_tokens(agent: Agent, shard: dict[str, Any]) -> None:
    """Let the engine go on answering `/health`, and say no further token."""
    os.kill(shard["pid"], signal.SIGUSR1)
