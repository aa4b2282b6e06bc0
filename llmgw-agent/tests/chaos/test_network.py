"""Packets that vanish: between agents and servers, between routers and engines, and clients'.

Two machines with an agent each, in network namespaces; servers and routers are on a third.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from llmgw.testing.fleet import Agent, Fleet, Server, ask
from llmgw.testing.site import seconds_until, wait_for
from llmgw.testing.streams import StreamLoad

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LONG_S = float(os.environ.get("LLMGW_CHAOS_LONG_S", "60"))  #: where the table says minutes
STREAMS = 40
ENGINES = "tcp X 20000-29999"

Figures = Callable[..., None]


@pytest.fixture
def machines(wires: Any, make_fleet: Callable[..., Fleet]) -> tuple[Any, Fleet]:
    fleet = make_fleet()
    server = fleet.server([], host="0.0.0.0", control={"placement_policy": "spread"})
    for number, machine in enumerate("ab"):
        fleet.agent(
            *("--server", f"10.99.{number}.1:{server.agent_port}"),
            *("--join", server.join_token()),
            *("--data-address", wires.address(machine)),
            prefix=wires.inside(machine),
        )
    wait_for("both nodes are there", lambda: len(server.get("/nodes")["nodes"]) == 2, 60)
    # Only now, so that each machine gets one of each.
    server.serve_models(
        [
            fleet.model("m", replicas=2, tokens=20, token_delay=0.5),
            fleet.model("long", replicas=2, tokens=10_000, token_delay=0.5),
        ]
    )
    fleet.wait_ready(4)
    return wires, fleet


def agents_port(fleet: Fleet) -> str:
    return f"tcp X {fleet.servers[0].agent_port}"


def test_nodes_cut_off_from_their_servers_go_on_serving(
    machines: tuple[Any, Fleet], figures: Figures
) -> None:
    """F11: partition agent-servers 10 min (here 60 s)."""
    wires, fleet = machines
    (server,) = fleet.servers
    before = server.ready()
    with StreamLoad([server.target], model="m", count=STREAMS) as load:
        for machine in "ab":
            wires.drop(machine, agents_port(fleet))
        cut = time.monotonic()
        gone_s = seconds_until(
            "both are disconnected", lambda: states(server) == {"disconnected"}, 80
        )
        time.sleep(max(0.0, LONG_S - (time.monotonic() - cut)))
        assert ask(server.target, "m").status_code == 200
        for machine in "ab":
            wires.heal(machine)
        back_s = seconds_until("both are back", lambda: states(server) == {"ready"}, 60)
    assert load.broken == ()
    wait_for("all engines are as before", lambda: server.ready() == before, 10)
    figures(
        F11=f"disconnected after {gone_s} s, back {back_s} s after {LONG_S:.0f} s of silence; "
        f"0 of {load.whole} streams broken, endpoints stayed, 0 restarts"
    )
    assert back_s <= 35


def states(server: Server) -> set[str]:
    return {item["state"] for item in (server.peek("/nodes") or {"nodes": ()})["nodes"]}


def test_an_engine_that_a_router_cannot_reach_is_left_out(
    machines: tuple[Any, Fleet], figures: Figures
) -> None:
    """F12: partition router-engine."""
    wires, fleet = machines
    (server,) = fleet.servers
    before = server.ready()
    with StreamLoad([server.target], model="m", count=STREAMS, begin_over_s=10.0) as load:
        wait_for("streams flow", lambda: load.whole >= STREAMS, 60)
        wires.drop("a", ENGINES)
        cut = time.monotonic()
        out_s = seconds_until("it is out", lambda: len(server.usable("m")) == 1, 60)
        time.sleep(max(0.0, 70 - (time.monotonic() - cut)))  # the idle limit of cut streams
        wires.heal("a")
        back_s = seconds_until("it is back", lambda: len(server.usable("m")) == 2, 90)
    before_first = [item for item in load.broken if not item.reached_client]
    cut_streams = [item for item in load.broken if item.reached_client]
    slow = max(item.first_byte - item.began for item in load.ended if item.first_byte)
    assert server.ready() == before
    figures(
        F12=f"out after {out_s} s, back {back_s} s after the wire healed; {len(before_first)} "
        f"failed before their first byte, {len(cut_streams)} were cut in the middle; "
        f"{load.whole} whole; longest first byte {slow:.1f} s; 0 restarts"
    )
    # What the engine had taken before the cut is tried again at the first byte's limit, as far
    # as the budget of retries goes. Nothing that was asked afterwards may fail.
    assert all(item.began < cut for item in load.broken), Counter(
        item.problem[-60:] for item in load.broken if item.began >= cut
    )
    assert out_s <= 10


@pytest.mark.parametrize("kind", ["one-way", "flapping", "loss"])
def test_a_bad_wire_moves_no_replica(
    machines: tuple[Any, Fleet], figures: Figures, kind: str
) -> None:
    """F13: one-way, flapping (1 s on/off, 5 min; here 60 s), 30 % loss."""
    wires, fleet = machines
    (server,) = fleet.servers
    before = server.ready()
    with StreamLoad([server.target], model="m", count=STREAMS) as load:
        end = time.monotonic() + LONG_S
        if kind == "one-way":
            wires.drop("a", agents_port(fleet), incoming=False)
        if kind == "loss":
            wires.drop("a", f"{agents_port(fleet)} numgen random mod 100 < 30")
        while time.monotonic() < end:
            if kind == "flapping":
                wires.drop("a", agents_port(fleet))
                time.sleep(1)
                wires.heal("a")
            time.sleep(1)
            assert open_sessions(server, "node-0") <= 1
        wires.heal("a")
        back_s = seconds_until("it is ready", lambda: server.node_state("node-0") == "ready", 60)
    wait_for("all engines are as before", lambda: server.ready() == before, 10)
    assert load.broken == ()
    sessions = server.text.count("INFO node registered node=node-0")
    figures(
        **{
            f"F13 {kind}": f"{sessions} sessions in {LONG_S:.0f} s, never two at a time; ready "
            f"{back_s} s after it healed; 0 replicas moved, 0 of {load.whole} streams broken"
        }
    )
    assert back_s <= 35


def open_sessions(server: Server, node: str) -> int:
    """Sessions that have begun and not ended, as the server told them."""
    began = set(re.findall(rf"node registered node={node} session=(\S+)", server.text))
    ended = set(re.findall(rf"node disconnected node={node} session=(\S+)", server.text))
    return len(began - ended)


def test_clients_that_vanish_free_their_slots(
    machines: tuple[Any, Fleet], figures: Figures
) -> None:
    """F24: client vanishes without FIN, x500 (here x100)."""
    wires, fleet = machines
    router = fleet.router("--insecure-bind", host="10.99.1.1")
    wait_for("it serves", lambda: ask(router.target, "m").status_code == 200, 30)
    code = CLIENTS.format(host="10.99.1.1", port=router.api_port, count=100)
    clients = subprocess.Popen([*wires.inside("b"), sys.executable, "-c", code])
    try:
        wait_for("the engines work for them", lambda: running_streams(fleet) >= 95, 60)
        wires.drop("b", f"tcp X {router.api_port}")
        gone = time.monotonic()
        clients.send_signal(signal.SIGKILL)
        clients.wait()
        wait_for("their slots are free", lambda: running_streams(fleet) == 0, 120)
        free_s = time.monotonic() - gone
    finally:
        clients.kill()
        clients.wait()
    figures(F24=f"all of 100 slots free {free_s:.1f} s after their clients had vanished")
    assert free_s <= 35


CLIENTS = """
import json, socket, time
body = json.dumps({{"model": "long", "stream": True, "messages": []}}).encode()
head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: m\\r\\nContent-Length: {{len(body)}}\\r\\n"
head += "Content-Type: application/json\\r\\n\\r\\n"
made = []
for _ in range({count}):
    made.append(socket.create_connection(("{host}", {port})))
    made[-1].sendall(head.encode() + body)
while True:
    for one in made:
        one.recv(65536)
"""


def running_streams(fleet: Fleet) -> int:
    return sum(running_on(agent) for agent in fleet.agents)


def running_on(agent: Agent) -> int:
    """How many requests its engines work on, by their own counters."""
    total = 0
    for item in agent.status()["shards"]:
        shard, ports = item["shard"]["id"], item["shard"]["ports"]
        key = (agent.state_dir / "shards" / shard / "key").read_text().strip()
        number = int(agent.name.rpartition("-")[2])
        page = httpx.get(
            f"http://10.99.{number}.2:{ports[0]}/metrics",
            headers={"authorization": f"Bearer {key}"},
            trust_env=False,
        ).text
        found = re.search(r"fake_requests_running (\d+)", page)
        assert found is not None
        total += int(found[1])
    return total
