"""Two servers on one PostgreSQL, two routers, two agents and four engines: who leads, who serves.

The load is 100 streams at 2 chunks a second, a tenth of the table's: all of it, engines and
clients included, has two cores here. LLMGW_CHAOS_STREAMS=1000 is the table's.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

import httpx
import pytest
import sqlalchemy as sa

from llmgw.testing.fleet import Fleet, Member, Server
from llmgw.testing.site import seconds_until, wait_for
from llmgw.testing.streams import StreamLoad

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

STREAMS = int(os.environ.get("LLMGW_CHAOS_STREAMS", "100"))
LONG_S = float(os.environ.get("LLMGW_CHAOS_LONG_S", "60"))  #: where the table says ten minutes
TOKENS = 20

Figures = Callable[..., None]


@pytest.fixture
def cluster(postgres_url: str, make_fleet: Callable[..., Fleet]) -> Fleet:
    fleet = make_fleet(store_url=postgres_url)
    models = [fleet.model("m", replicas=4, tokens=TOKENS, token_delay=0.5)]
    for _ in range(2):
        fleet.server(models)
    for _ in range(2):
        fleet.agent()
    for _ in range(2):
        fleet.router()
    fleet.wait_ready(4)
    for router in fleet.routers:
        wait_for(f"{router.name} serves", lambda: router.serves("m"), 30)  # noqa: B023 - at once
    return fleet


def load_on(fleet: Fleet) -> StreamLoad:
    targets = [router.target for router in fleet.routers]
    return StreamLoad(targets, model="m", count=STREAMS, tokens=TOKENS)


def flows(load: StreamLoad) -> None:
    wait_for("streams flow", lambda: load.whole >= STREAMS // 2, 60)


def running_streams(fleet: Fleet) -> int:
    """How many requests the engines work on, by their own counters."""
    total = 0
    for agent in fleet.agents:
        for item in agent.status()["shards"]:
            shard = item["shard"]
            key = (agent.state_dir / "shards" / shard["id"] / "key").read_text().strip()
            page = httpx.get(
                f"http://127.0.0.1:{shard['ports'][0]}/metrics",
                headers={"authorization": f"Bearer {key}"},
                trust_env=False,
            ).text
            found = re.search(r"fake_requests_running (\d+)", page)
            assert found is not None
            total += int(found[1])
    return total


def test_a_killed_leader_costs_no_stream_and_no_engine(cluster: Fleet, figures: Figures) -> None:
    """F1: kill -9 the leader under L."""
    before = cluster.wait_ready(4)
    with load_on(cluster) as load:
        flows(load)
        leader = cluster.leader()
        (other,) = (item for item in cluster.servers if item is not leader)
        epoch = leader.epoch()
        leader.kill()
        led_s = seconds_until("the other leads", other.leads, 40)
        later = other.epoch()
        known_s = seconds_until("it knows the engines", lambda: other.ready() == before, 60)
        leader.start()
        wait_for("the first is back", lambda: leader.peek("/status"), 60)
        time.sleep(10)  # two passes and two renewals with both
        assert other.leads()
        assert not leader.leads()
    assert load.broken == ()
    assert other.ready() == before
    assert later > epoch
    figures(
        F1=f"the other led after {led_s} s, knew all engines {known_s} s later, epoch "
        f"{epoch} -> {later}; 0 of {load.whole} streams broken ({STREAMS} at a time), 0 restarts"
    )
    assert led_s <= 20


def test_routers_serve_without_any_server(cluster: Fleet, figures: Figures) -> None:
    """F2: kill -9 all servers for 10 min (here 60 s), new requests meanwhile."""
    before = cluster.wait_ready(4)
    with load_on(cluster) as load:
        flows(load)
        for server in cluster.servers:
            server.kill()
        had = load.whole
        time.sleep(LONG_S)
        meanwhile = load.whole - had
        for server in cluster.servers:
            server.start()
        back_s = seconds_until(
            "all is as it was", lambda: any(s.ready() == before for s in cluster.servers), 90
        )
        leader = cluster.leader()
        wait_for("the leader knows the engines", lambda: leader.ready() == before, 60)
    assert load.broken == ()
    assert meanwhile > 0
    figures(
        F2=f"{meanwhile} streams answered whole in {LONG_S:.0f} s without a server, 0 broken; "
        f"converged {back_s} s after the start of both; 0 restarts"
    )
    assert back_s <= 30


def test_a_killed_router_ends_only_its_own_streams_and_a_stopped_one_none(
    cluster: Fleet, figures: Figures
) -> None:
    """F3: kill -9 one router under L; and a clean restart."""
    before = cluster.wait_ready(4)
    first, second = cluster.routers
    with load_on(cluster) as load:
        flows(load)
        killed = time.monotonic()
        first.kill()
        freed_s = seconds_until(
            "the engines dropped them", lambda: running_streams(cluster) <= STREAMS // 2 + 2, 20
        )
        lost = [item for item in load.broken if item.began < killed]
        load.retarget([second.target])
        first.start()
        wait_for("it serves again", lambda: first.serves("m"), 30)
        load.retarget([first.target])
        had = len(load.broken)
        assert second.running is not None
        second.running.process.send_signal(signal.SIGTERM)
        code = second.running.process.wait(60)
        after = load.broken[had:]
        second.stop()
        second.start()
        wait_for("it serves again", lambda: second.serves("m"), 30)
    assert {item.target for item in lost} == {first.target}
    assert 0 < len(lost) <= STREAMS // 2
    assert code == 0
    assert after == ()
    assert cluster.wait_ready(4) == before
    figures(
        F3=f"kill -9: {len(lost)} streams, all of its own; engines free after {freed_s} s; clean "
        f"restart: 0 broken; {load.whole} whole; 0 restarts"
    )
    # Two seconds, and the two tokens, 0.5 s apart, that a write needs to fail.
    assert freed_s <= 3.0


def test_a_frozen_leader_is_replaced_and_writes_nothing_when_it_wakes(
    cluster: Fleet, postgres_url: str, figures: Figures
) -> None:
    """F6: SIGSTOP leader 60 s, then continue."""
    before = cluster.wait_ready(4)
    with load_on(cluster) as load:
        flows(load)
        leader = cluster.leader()
        (other,) = (item for item in cluster.servers if item is not leader)
        epoch = leader.epoch()
        began = time.monotonic()
        leader.freeze()
        led_s = seconds_until("the other leads", other.leads, 40)
        time.sleep(max(0.0, 60 - (time.monotonic() - began)))
        held = lease_of(postgres_url)
        leader.thaw()
        down_s = seconds_until("it has stepped down", lambda: follows(leader), 30)
        refused = leader.send("POST", "/nodes/node-0/cordon", {"reason": "late"})
        time.sleep(5)
        again = lease_of(postgres_url)
    assert load.broken == ()
    assert other.leads()
    assert other.ready() == before
    assert again == held, "the lease changed hands again"
    applied = {item.status()["epoch"] for item in cluster.agents}
    # 0: of a node that was never ordered anything.
    assert applied <= {0, epoch, other.epoch()}
    figures(
        F6=f"the other led after {led_s} s; the frozen one knew {down_s} s after it woke, and "
        f"passed an order on or refused it (status {refused.status_code}); lease and term "
        f"unchanged; 0 of {load.whole} streams broken, 0 restarts"
    )
    assert led_s <= 20


def follows(server: Server) -> bool:
    status = server.peek("/status")
    return bool(status and status["leadership"] and not status["leadership"]["here"])


def lease_of(postgres_url: str) -> tuple[str, int]:
    url = sa.make_url(postgres_url).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        row = connection.exec_driver_sql("SELECT holder, term FROM lease").one()
    engine.dispose()
    return str(row[0]), int(row[1])


def test_every_part_is_replaced_under_load(cluster: Fleet, figures: Figures) -> None:
    """F27: rolling deploy, drain, upgrade of all parts under L."""
    before = set(cluster.wait_ready(4).values())
    first, second = cluster.routers
    took: dict[str, float] = {}
    with load_on(cluster) as load:
        flows(load)
        server = cluster.leader()
        server.send("POST", "/nodes/node-0/drain", {"reason": "upgrade"}).raise_for_status()
        took["drain"] = seconds_until("node-0 is empty", lambda: on_node(cluster, "node-0", 0), 120)
        wait_for("node-1 serves all", lambda: on_node(cluster, "node-1", 4), 60)
        server.send("POST", "/nodes/node-0/uncordon").raise_for_status()

        old = set(cluster.wait_ready(4).values())
        model = cluster.model("m", replicas=4, tokens=TOKENS, token_delay=0.49)
        for item in cluster.servers:
            item.serve_models([model])
        took["rollout"] = seconds_until(
            "all are of the new version", lambda: not old & set(cluster.wait_ready(4).values()), 180
        )
        now = cluster.wait_ready(4)
        for agent in cluster.agents:
            restart(agent)
        for item in cluster.servers:
            restart(item)
            wait_for("it answers", lambda: item.peek("/status"), 60)  # noqa: B023 - at once
            cluster.leader()
        wait_for("all engines are known", lambda: cluster.wait_ready(4) == now, 60)
        for router, other in ((first, second), (second, first)):
            load.retarget([other.target])
            restart(router)
            wait_for("it serves", lambda: router.serves("m"), 30)  # noqa: B023 - at once
    assert load.broken == ()
    assert cluster.wait_ready(4) == now
    assert before.isdisjoint(now.values())
    figures(
        F27=f"drained in {took['drain']} s, rolled out in {took['rollout']} s, then every agent, "
        f"server and router restarted: 0 of {load.whole} streams broken, engines as rolled out"
    )


def restart(member: Member) -> None:
    """Stop in order and start again, as an upgrade does."""
    assert member.running is not None
    member.running.process.send_signal(signal.SIGTERM)
    assert member.running.process.wait(60) == 0
    member.stop()
    member.start()


def on_node(fleet: Fleet, node: str, count: int) -> bool:
    """Whether so many engines are ready there, and no other runs there."""
    states = [item["state"] for item in fleet.leader().shards().values() if item["node"] == node]
    return states == ["ready"] * count
