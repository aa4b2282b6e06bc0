"""A site at work: the catalog changes, nodes are emptied, a leader dies, a model is woken."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from llmgw.testing.fleet import Fleet, Server, ask
from llmgw.testing.site import seconds_until, wait_for
from llmgw.testing.streams import StreamLoad

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Cluster(Protocol):
    """What the fixture hands over; see conftest.py."""

    fleet: Fleet
    gguf: Path

    @property
    def targets(self) -> list[tuple[str, int]]: ...
    def model(self, name: str, replicas: Any = 1, **profile: Any) -> dict[str, Any]: ...
    def ctl(self, *arguments: str, server: Server | None = None) -> Any: ...
    def apply(self, *models: dict[str, Any], verb: str = "apply") -> Any: ...
    def replicas(self, model: str) -> list[dict[str, Any]]: ...
    def engines(self, model: str) -> dict[str, tuple[str, int]]: ...
    def statuses(self, model: str) -> list[int]: ...
    def wait_statuses(self, model: str, *wanted: int, limit_s: float = 60.0) -> None: ...
    def wait_engines(self, model: str, count: int, limit_s: float = 60.0) -> dict[str, Any]: ...


def test_the_catalog_changes_under_load_and_only_what_changed_is_touched(cluster: Cluster) -> None:
    planned = cluster.apply(cluster.model("one", 2), verb="plan")
    assert [action["action"] for action in planned["actions"]] == ["start", "start"]
    assert cluster.statuses("one") == [404, 404], "a plan changes nothing"

    cluster.apply(cluster.model("one", 2), cluster.model("other"))
    cluster.wait_statuses("one", 200)
    cluster.wait_statuses("other", 200)
    before, other = cluster.wait_engines("one", 2), cluster.wait_engines("other", 1)
    version = cluster.ctl("history")["changes"][0]["version"]

    with StreamLoad(cluster.targets, model="one", count=8) as load:
        cluster.apply(cluster.model("one", 2, options={"ctx_size": 256}))
        wait_for("both engines are new", lambda: is_replaced(cluster, before), 90)
        changed = cluster.wait_engines("one", 2)
        cluster.ctl("rollback", str(version))
        wait_for("both are new again", lambda: is_replaced(cluster, changed), 90)
    assert load.broken == ()
    assert load.whole > 50
    assert cluster.engines("other") == other

    cluster.ctl("delete", "one")
    cluster.wait_statuses("one", 404, limit_s=10)
    wait_for("its engines are gone", lambda: cluster.replicas("one") == [], 60)
    assert cluster.engines("other") == other
    assert cluster.statuses("other") == [200, 200]

    refused = cluster.fleet.try_ctl("delete", "one")
    assert refused.returncode == 1
    assert "one" in refused.stderr


def is_replaced(cluster: Cluster, before: dict[str, Any]) -> bool:
    now = cluster.engines("one")
    return len(now) == len(before) and not now.keys() & before.keys()


def test_a_rollout_that_failed_for_a_missing_file_is_tried_again(cluster: Cluster) -> None:
    cluster.apply(cluster.model("one"))
    cluster.wait_statuses("one", 200)
    before = cluster.wait_engines("one", 1)
    later = cluster.gguf.with_name("later.gguf")
    cluster.apply(cluster.model("one", weights=f"path:{later}"))

    def stands_still() -> list[str]:
        refusals = explained(cluster, "one")
        return [item["sentence"] for item in refusals if item["code"] == "rollout_failed"]

    (why,) = wait_for("the rollout stands still", stands_still, 60)
    assert later.name in why
    assert cluster.engines("one") == before, "the old version goes on serving"
    later.write_bytes(cluster.gguf.read_bytes())
    assert cluster.ctl("retry", "one")["nodes"] != []
    wait_for("the new version serves", lambda: is_replaced(cluster, before), 60)
    assert cluster.statuses("one") == [200, 200]


def test_a_drained_node_is_emptied_without_a_failed_request(cluster: Cluster) -> None:
    cluster.apply(cluster.model("one", 2))
    cluster.wait_statuses("one", 200)
    before = cluster.wait_engines("one", 2)
    (node, _), *_ = before.values()
    with StreamLoad(cluster.targets, model="one", count=8) as load:
        cluster.ctl("drain", node, "--reason", "new fans")
        wait_for(
            "all of it runs elsewhere",
            lambda: (
                len(now := cluster.engines("one")) == 2
                and node not in {place for place, _ in now.values()}
            ),
            90,
        )
        wait_for("nothing is left there", lambda: not runs_on(cluster, node), 60)
    assert load.broken == ()
    assert load.whole > 20
    cluster.ctl("uncordon", node)


def runs_on(cluster: Cluster, node: str) -> bool:
    listed = cluster.ctl("replicas")["replicas"]
    return any(shard["node"] == node for item in listed for shard in item["shards"])


def test_a_leader_that_is_killed_under_load_costs_no_request(cluster: Cluster) -> None:
    cluster.apply(cluster.model("one", 2))
    cluster.wait_statuses("one", 200)
    engines = cluster.wait_engines("one", 2)
    first = cluster.fleet.leader()
    (second,) = (server for server in cluster.fleet.servers if server is not first)
    refused = second.send("POST", "/nodes/node-0/cordon", {"reason": "new fans"})
    assert refused.status_code == 503
    assert refused.json()["error"]["leader_url"] == first.admin_url
    followed = cluster.fleet.try_ctl("cordon", "node-0", server=second)
    assert followed.returncode == 0
    assert first.admin_url in followed.stderr, "it says where the change went"
    assert cordoned(first, "node-0")
    cluster.ctl("uncordon", "node-0")
    epoch = first.epoch()
    with StreamLoad(cluster.targets, model="one", count=8) as load:
        wait_for("streams flow", lambda: load.whole > 20, 30)
        first.kill()
        took_s = seconds_until("the other leads", second.leads, 40)
        began = load.whole
        wait_for("streams flow on", lambda: load.whole > began + 50, 60)
        cluster.apply(cluster.model("two"))
        cluster.wait_statuses("two", 200)
    assert load.broken == ()
    assert took_s <= 20
    assert second.epoch() > epoch
    assert cluster.engines("one") == engines, "no engine was touched"

    first.start()
    wait_for("it follows", lambda: first.peek("/status") is not None, 40)
    assert not first.leads()
    assert cluster.engines("one") == engines
    print(f"another led after {took_s:.1f} s, {load.whole} streams whole")  # noqa: T201


def cordoned(server: Server, node: str) -> bool:
    found = server.node(node)
    return found is not None and bool(found["cordoned"])


def test_fifty_requests_wake_a_sleeping_model_once_and_all_are_answered(cluster: Cluster) -> None:
    sleeper = cluster.model("sleeper", {"min": 0, "max": 3}) | {"idle_after": "5s"}
    cluster.apply(sleeper)
    wait_for(
        "it is asleep on both routers",
        lambda: all(is_asleep(cluster, target) for target in cluster.targets),
        30,
    )
    assert cluster.replicas("sleeper") == []
    with ThreadPoolExecutor(50) as clients:
        answers = list(
            clients.map(
                lambda number: ask(cluster.targets[number % 2], "sleeper", limit_s=60), range(50)
            )
        )
    assert [answer.status_code for answer in answers] == [200] * 50
    assert orders(cluster, "sleeper") == 1
    wait_for("it sleeps again", lambda: cluster.replicas("sleeper") == [], 60)
    assert ask(cluster.targets[0], "sleeper", limit_s=60).status_code == 200


def is_asleep(cluster: Cluster, target: tuple[str, int]) -> bool:
    url = f"http://{target[0]}:{target[1]}/v1/models"
    listed = httpx.get(url, trust_env=False, timeout=5).json()["data"]
    return any(item["id"] == "sleeper" for item in listed)


def orders(cluster: Cluster, model: str) -> int:
    events = cluster.ctl("events", "--limit", "1000")["events"]
    return sum(item["kind"] == "replica_ordered" and model in str(item) for item in events)


def test_explain_gives_each_model_that_cannot_run_its_own_reason(cluster: Cluster) -> None:
    reasons: dict[str, dict[str, Any]] = {
        "pool_mismatch": {"pool": "nowhere"},
        "label_mismatch": {"labels": {"part": "z"}},
        "fabric_missing": {
            "engine": "vllm",
            "weights": "hf:acme/tiny@main",
            "nodes": 2,
            "fabric": "rail",
            "devices": {"count": 2, "memory_gib": 1},
            "parallel": {"tensor": 2},
        },
        "ram_short": {"ram_gib": 100000},
        "too_few_devices": {"devices": {"count": 1, "memory_gib": 1}},
    }
    entries = [
        cluster.model(code.replace("_", "-"), **profile) for code, profile in reasons.items()
    ]
    entries.append({"name": "no-profile", "profiles": []})
    reasons["no_profile"] = {}
    cluster.apply(*entries)
    found = {code: explained(cluster, code.replace("_", "-")) for code in reasons}
    cluster.ctl("cordon", "node-0", "--reason", "new fans")
    cluster.ctl("drain", "node-1", "--reason", "new disk")
    cluster.apply(cluster.model("homeless", 2, labels={"part": "a"}), cluster.model("spare"))
    found["node_cordoned"] = explained(cluster, "homeless")
    found["node_draining"] = explained(cluster, "homeless")
    cluster.fleet.agents[2].kill()
    wait_for("it is suspect", lambda: cluster.fleet.leader().node_state("node-2") != "ready", 90)
    found["node_not_ready"] = explained(cluster, "spare")
    broken = cluster.model("broken", weights=f"path:{cluster.fleet.weights}", pool="default")
    cluster.ctl("uncordon", "node-0")
    cluster.apply(broken)
    found["crash_loop"] = wait_for(
        "it is kept off the node where it failed",
        lambda: [item for item in explained(cluster, "broken") if item["code"] == "crash_loop"],
        60,
    )
    for refusals in found.values():
        for item in refusals:
            assert item["code"]
            assert item["sentence"]
            print(f"{item['code']}: {item['sentence']} [{item['hint']}]")  # noqa: T201
    codes = {code: {item["code"] for item in refusals} for code, refusals in found.items()}
    assert {code: others for code, others in codes.items() if code not in others} == {}
    assert len(set.union(*codes.values())) >= 10
    unknown = cluster.fleet.try_ctl("explain", "no-such-model")
    assert unknown.returncode == 1
    assert "no-such-model" in unknown.stderr


def explained(cluster: Cluster, model: str) -> list[dict[str, Any]]:
    return list(flat(cluster.ctl("explain", model)["refusals"]))


def flat(refusals: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in refusals:
        yield item
        yield from flat(item["parts"])
