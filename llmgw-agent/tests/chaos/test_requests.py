"""Requests that harm: one that kills its engine, and five times as many as fit."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable

import pytest

from llmgw.testing.fleet import Fleet, Server, ask
from llmgw.testing.site import seconds_until, wait_for
from llmgw.testing.streams import StreamLoad

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LONG_S = float(os.environ.get("LLMGW_CHAOS_LONG_S", "60"))  #: where the table says five minutes

Figures = Callable[..., None]


def test_a_request_kills_two_engines_at_most(fleet: Fleet, figures: Figures) -> None:
    """F25: poison request, x10."""
    server = fleet.server([fleet.model("m", replicas=4, crash_on="hemlock", token_delay=0.05)])
    fleet.agent()
    before = fleet.wait_ready(4)
    poison = [{"role": "user", "content": "hemlock"}]
    with StreamLoad([server.target], model="m", count=8, tokens=5) as load:
        wait_for("streams flow", lambda: load.whole >= 8, 60)
        answers = [ask(server.target, "m", messages=poison) for _ in range(10)]
        wait_for("all are ready again", lambda: len(server.ready()) == 4, 60)
    died = sum(item["restarts"] for item in server.shards().values())
    codes = Counter(
        (item.status_code, item.json().get("error", {}).get("code")) for item in answers
    )
    assert died <= 2, codes
    assert sum(pid not in before.values() for pid in server.ready().values()) == died
    assert all(code == "request_quarantined" for _, code in codes), codes
    assert all(item.reached_client for item in load.broken), load.broken[:3]
    figures(
        F25=f"{died} engines died of 10 tries, answers {dict(codes)}; of the others' streams "
        f"{len(load.broken)} were cut on those engines, {load.whole} whole"
    )


def test_overload_is_refused_and_costs_no_goodput(fleet: Fleet, figures: Figures) -> None:
    """F26: overload 5x capacity, 5 min (here 60 s)."""
    model = fleet.model("m", replicas=2, tokens=5, token_delay=0.1)
    model["profiles"][0]["max_inflight"] = 8
    server = fleet.server([model], router={"queue": {"length": 16}, "deadlines": {"queue": "2s"}})
    fleet.agent()
    fleet.wait_ready(2)
    wait_for("it serves", lambda: ask(server.target, "m").status_code == 200, 30)
    peak = goodput(server.target, clients=16, for_s=10)
    rate, statuses, queued = overload(server, clients=80)
    recovered_s = seconds_until("requests are served at once", lambda: quick(server.target), 30)
    figures(
        F26=f"goodput {peak:.1f}/s at capacity, {rate:.1f}/s at 5x for {LONG_S:.0f} s "
        f"({rate / peak:.0%}); longest queue {queued}; answers {dict(statuses)}; "
        f"recovered {recovered_s} s after"
    )
    assert rate >= 0.9 * peak
    assert queued <= 16
    assert set(statuses) <= {200, 429}
    assert recovered_s <= 10


def goodput(target: tuple[str, int], *, clients: int, for_s: float) -> float:
    with StreamLoad([target], model="m", count=clients, tokens=5) as load:
        time.sleep(2)
        had = load.whole
        time.sleep(for_s)
        return (load.whole - had) / for_s


def overload(server: Server, *, clients: int) -> tuple[float, Counter[int], int]:
    """Return answers a second, all statuses, and the longest queue that was seen."""
    queued = 0
    with StreamLoad([server.target], model="m", count=clients, tokens=5) as load:
        time.sleep(2)
        had, end = load.whole, time.monotonic() + LONG_S
        while time.monotonic() < end:
            queued = max(queued, server.get("/status")["queued"])
            time.sleep(0.5)
        rate = (load.whole - had) / LONG_S
    statuses: Counter[int] = Counter({200: load.whole})
    for item in load.broken:
        words = item.problem.split()
        statuses[int(words[1]) if item.problem.startswith("HTTP/") else 0] += 1
    return rate, statuses, queued


def quick(target: tuple[str, int]) -> bool:
    began = time.monotonic()
    return ask(target, "m").status_code == 200 and time.monotonic() - began < 1.0
