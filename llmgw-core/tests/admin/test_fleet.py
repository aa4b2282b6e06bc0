"""Nodes, models and replicas of a whole server, as its admin API tells them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from llmgw.domain.replicas import Failure, FailureCause, ShardState
from llmgw.testing.clock import FastClock
from llmgw.testing.cluster import RunningServer, running_server
from llmgw.testing.engine_script import Script, ScriptedEngine
from llmgw.testing.values import device, inventory

pytestmark = pytest.mark.anyio

SAID = {"driver": "580.95.05", "ecc": "on", "ecc_uncorrected": "2", "xid": "31"}
PCI = "00000000:1B:00.0"
MODELS: list[dict[str, Any]] = [
    {
        "name": "tiny",
        "aliases": ["t"],
        "profiles": [
            {
                "engine": "fake",
                "weights": "path:/w/tiny.gguf",
                "devices": {"count": 1, "memory_gib": 10},
            }
        ],
    },
    {
        "name": "huge",
        "profiles": [
            {
                "engine": "fake",
                "weights": "path:/w/huge.gguf",
                "devices": {"count": 8, "memory_gib": 70},
            }
        ],
    },
]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningServer]:
    """A server with one node of two devices, on which `tiny` runs and `huge` cannot."""
    async with (
        ScriptedEngine(Script.plain({})) as engine,
        running_server(
            tmp_path, models=MODELS, control={"port_range": (1024, 65535)}, clock=FastClock()
        ) as running,
    ):
        # The router looks by itself whether something answers where the first replica should be.
        port = httpx.URL(engine.url).port
        assert port is not None
        devices = (device("gpu-01", 0, labels=SAID, pci_address=PCI), device("gpu-01", 1))
        running.nodes.join(inventory("gpu-01", devices=devices, port_range=(port, port + 1)))
        await until(lambda: one_ready(running))
        yield running


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(10):
        while not await condition():  # noqa: ASYNC110 - there is no event to wait for out here
            await anyio.sleep(0.05)


async def one_ready(server: RunningServer) -> bool:
    server.nodes.beat()
    server.nodes.settle()
    replicas = (await get(server, "/replicas"))["replicas"]
    return any(replica["state"] == "ready" for replica in replicas)


async def get(server: RunningServer, path: str) -> Any:
    answer = await server.admin.get(f"/admin/v1{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def post(server: RunningServer, path: str, body: object = None) -> httpx.Response:
    return await server.admin.post(f"/admin/v1{path}", json=body)


async def test_the_fleet_is_told_as_it_is(server: RunningServer) -> None:
    status = await get(server, "/status")
    assert status["nodes"] == {"ready": 1}
    assert (status["devices_used"], status["devices_total"]) == (1, 2)
    assert status["leadership"]["here"]
    (said,) = [problem for problem in status["problems"] if "huge" in problem]
    assert said.startswith("model huge cannot run now: ")

    (node,) = (await get(server, "/nodes"))["nodes"]
    assert (node["id"], node["state"], node["devices_free"]) == ("gpu-01", "ready", 1)
    detail = await get(server, "/nodes/gpu-01")
    (held,) = [item for item in detail["device_list"] if item["used_by"]]
    first, second = detail["device_list"]
    assert (first["labels"], first["pci_address"]) == (SAID, PCI)
    assert (second["labels"], second["pci_address"]) == ({}, None)
    (replica,) = (await get(server, "/replicas"))["replicas"]
    assert held["used_by"] == [replica["shards"][0]["id"]]
    assert (replica["model"], replica["state"]) == ("tiny", "ready")

    tiny = next(item for item in (await get(server, "/models"))["models"] if item["name"] == "tiny")
    assert (tiny["state"], tiny["ready"], tiny["aliases"]) == ("serving", 1, ["t"])
    assert tiny["owner"].startswith("file:")
    (endpoint,) = (await get(server, "/endpoints"))["endpoints"]
    assert endpoint["replica"] == replica["id"]


async def test_why_not_is_a_tree_with_codes_and_never_an_empty_reason(
    server: RunningServer,
) -> None:
    explained = await get(server, "/explain/model/huge")

    def check(refusal: dict[str, Any]) -> int:
        assert refusal["code"]
        assert refusal["sentence"]
        return 1 + sum(map(check, refusal["parts"]))

    assert sum(map(check, explained["refusals"])) > 1
    assert "huge" in explained["subject"]
    assert "0 ready, 1 wanted" in explained["summary"]
    assert "does not fit on the only node" in explained["refusals"][0]["sentence"]
    assert (await get(server, "/explain/node/gpu-01"))["refusals"]
    for path in ("/explain/model/ghost", "/explain/node/ghost", "/nodes/ghost", "/route/ghost"):
        assert (await server.admin.get(f"/admin/v1{path}")).status_code == 404


async def test_why_not_is_the_failure_where_there_is_room(tmp_path: Path) -> None:
    async with running_server(tmp_path, models=MODELS[:1], clock=FastClock()) as server:
        server.nodes.join(inventory("gpu-01", devices=2))
        await until(lambda: beaten(server))
        failure = Failure(cause=FailureCause.BAD_OPTION, message="no such option", hint="drop it")
        for ident in list(next(iter(server.nodes.nodes.values())).shards):
            server.nodes.enter(ident, ShardState.BACKOFF, failure=failure, restarts=1)

        async def told() -> bool:
            return bool((await get(server, "/explain/model/tiny"))["refusals"])

        await until(told)
        (refusal,) = (await get(server, "/explain/model/tiny"))["refusals"]
    assert (refusal["code"], refusal["hint"]) == ("start_failed", "drop it")
    assert "no such option" in refusal["sentence"]


async def beaten(server: RunningServer) -> bool:
    """Let the nodes say that they live; return whether they have been given work."""
    server.nodes.beat()
    return bool(server.nodes.sent)


async def test_the_routers_choice_is_told_and_leaves_no_trace(server: RunningServer) -> None:
    for name in ("tiny", "t"):
        route = await get(server, f"/route/{name}")
        assert route["model"] == "tiny"
        assert route["chosen"] == route["endpoints"][0]["id"]
        assert route["because"]
        assert route["endpoints"][0]["in_flight"] == 0
    assert (await get(server, "/route/huge"))["chosen"] is None


async def test_a_failure_is_told_with_cause_and_way_out(server: RunningServer) -> None:
    (replica,) = (await get(server, "/replicas"))["replicas"]
    failure = Failure(
        cause=FailureCause.OUT_OF_DEVICE_MEMORY,
        message="needs 12 GiB, 10 are free",
        hint="lower max_model_len",
        log_tail=("<script>alert(1)</script>",),
    )
    server.nodes.enter(replica["shards"][0]["id"], ShardState.BACKOFF, failure=failure, restarts=1)
    (failed,) = (await get(server, "/replicas"))["replicas"]
    (shard,) = failed["shards"]
    assert (shard["cause"], shard["hint"]) == ("out_of_device_memory", "lower max_model_len")
    assert failed["restarts"] == 1


async def test_a_cordoned_node_says_why_until_it_is_taken_back(server: RunningServer) -> None:
    assert (
        await post(server, "/nodes/gpu-01/cordon", {"reason": "fan is loud"})
    ).status_code == 200
    node = await get(server, "/nodes/gpu-01")
    assert (node["cordoned"], node["because"]) == (True, "fan is loud")
    assert (await post(server, "/nodes/gpu-01/uncordon")).status_code == 200
    assert not (await get(server, "/nodes/gpu-01"))["cordoned"]
    kinds = [event["kind"] for event in (await get(server, "/events"))["events"]]
    assert {"node_cordoned", "node_uncordoned"} <= set(kinds)


async def test_a_plan_says_what_would_happen_and_nothing_does(server: RunningServer) -> None:
    small = {**MODELS[0], "name": "more", "aliases": []}
    plan = (await post(server, "/plan", {"models": [small]})).json()
    assert ("start", "more") in [(item["action"], item["model"]) for item in plan["actions"]]
    names = [item["name"] for item in (await get(server, "/models"))["models"]]
    assert "more" not in names


async def test_a_model_that_is_applied_starts_and_one_that_is_removed_stops(
    server: RunningServer,
) -> None:
    small = {**MODELS[0], "name": "more", "aliases": []}
    applied = await post(server, "/catalog", {"models": [small]})
    assert applied.status_code == 200, applied.text

    async def states() -> dict[str, str]:
        server.nodes.beat()
        server.nodes.settle()
        found = (await get(server, "/replicas"))["replicas"]
        return {item["model"]: item["state"] for item in found}

    async def runs() -> bool:
        return (await states()).get("more") == "ready"

    async def is_gone() -> bool:
        return "more" not in await states()

    await until(runs)
    removed = await server.admin.delete("/admin/v1/catalog/more")
    assert removed.status_code == 200
    await until(is_gone)


async def test_an_unknown_engine_is_refused_with_those_that_there_are(
    server: RunningServer,
) -> None:
    bad = {"name": "bad", "profiles": [{"engine": "vlm", "weights": "path:/x"}]}
    answer = await post(server, "/catalog", {"models": [bad]})
    assert answer.status_code == 400
    (problem,) = answer.json()["error"]["problems"]
    assert problem["path"].startswith("models[0].profiles[0].engine")
    assert "fake" in problem["message"]


async def test_what_nodes_cannot_do_here_is_not_available(server: RunningServer) -> None:
    for path in ("/nodes/gpu-01/logs", "/nodes/gpu-01/weights", "/nodes/gpu-01/logs/sources"):
        answer = await server.admin.get(f"/admin/v1{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "not_available")


async def test_a_new_key_is_in_force_at_once_and_a_revoked_one_no_more(tmp_path: Path) -> None:
    async with running_server(tmp_path, models=MODELS, auth={"api_keys": "on"}) as server:
        made = (await post(server, "/keys", {"name": "ci"})).json()
        header = {"authorization": f"Bearer {made['secret']}"}
        assert (await server.api.get("/v1/models", headers=header)).status_code == 200
        assert (await server.api.get("/v1/models")).status_code == 401
        await server.admin.delete(f"/admin/v1/keys/{made['id']}")
        assert (await server.api.get("/v1/models", headers=header)).status_code == 401


async def test_events_can_be_followed_as_they_come(server: RunningServer) -> None:
    with anyio.fail_after(10):
        async with server.admin.stream("GET", "/admin/v1/events/follow") as stream:
            lines = stream.aiter_lines()
            await post(server, "/nodes/gpu-01/cordon", {"reason": "seen"})
            async for line in lines:
                if "node_cordoned" in line:
                    break


async def test_tasks_of_the_process_can_be_looked_at(server: RunningServer) -> None:
    answer = await server.admin.get("/admin/v1/debug/tasks")
    assert answer.status_code == 200
    assert "Task" in answer.text or "Stack" in answer.text
