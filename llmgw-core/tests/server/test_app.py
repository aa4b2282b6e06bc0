"""A server as a whole: what it runs, how it starts, what it answers, how it ends."""

from __future__ import annotations

import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmgw.clock import SystemClock
from llmgw.config.addresses import Address
from llmgw.config.loading import load_server
from llmgw.domain.replicas import ShardState
from llmgw.errors import ConfigError
from llmgw.server.app import Server
from llmgw.server.listeners import listen
from llmgw.testing.cluster import RunningServer, registry_of_fakes, running_server
from llmgw.testing.engine_script import Script, ScriptedEngine, Send, Wait, chunk
from llmgw.testing.values import inventory

pytestmark = pytest.mark.anyio

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
ANSWER = {"object": "chat.completion", "choices": []}
TINY = {"name": "tiny", "profiles": [{"engine": "fake", "weights": "path:/w/tiny.gguf"}]}


def endpoint(engine: ScriptedEngine, **more: object) -> dict[str, object]:
    return {"id": "e1", "url": engine.url, "models": ["m", "alias"], "health_path": None, **more}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again: the server is real, and seen from outside."""
    with anyio.fail_after(8):
        while not await condition():  # noqa: ASYNC110 # there is no event to wait for out here
            await anyio.sleep(0.02)


async def models(server: RunningServer) -> list[str]:
    return [model["id"] for model in (await server.api.get("/v1/models")).json()["data"]]


async def test_static_endpoints_are_served_without_a_store_or_a_control_plane(
    tmp_path: Path,
) -> None:
    async with ScriptedEngine(Script.plain(ANSWER)) as engine:
        async with running_server(tmp_path, endpoints=[endpoint(engine)]) as server:
            answer = await server.api.post("/v1/chat/completions", json=CHAT)
            assert answer.json() == ANSWER
            assert await models(server) == ["m", "alias"]
            assert (await server.api.get("/readyz")).status_code == 200
            assert server.serving.agents is None
        assert engine.requests[0].json() == CHAT
    assert not (tmp_path / "llmgw.db").exists()


async def test_the_admin_listener_asks_for_the_token_that_was_made_at_the_start(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedEngine() as engine,
        running_server(tmp_path, endpoints=[endpoint(engine)]) as server,
    ):
        assert (await server.admin.get("/admin/v1/status")).status_code == 200
        assert (await server.admin.get("/metrics")).status_code == 200
        wrong = {"Authorization": "Bearer wrong"}
        assert (await server.admin.get("/admin/v1/status", headers=wrong)).status_code == 401
        on_api = await server.api.get("/admin/v1/status")
        assert on_api.status_code == 401, "loopback: the same side, the same authentication"
    assert stat.S_IMODE((tmp_path / "admin.token").stat().st_mode) == 0o600


async def test_the_operators_side_is_not_on_the_api_where_that_is_not_wanted(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedEngine() as engine,
        running_server(
            tmp_path, endpoints=[endpoint(engine)], auth={"admin_on_api": False}
        ) as server,
    ):
        assert (await server.api.get("/admin/v1/status")).status_code == 404


async def test_a_model_with_a_profile_is_placed_on_a_node_served_and_withdrawn(
    tmp_path: Path,
) -> None:
    async with ScriptedEngine(Script.plain(ANSWER)) as engine:
        ports = [engine.port, engine.port]
        control = {"settle": 0.5, "dispatcher": "memory", "port_range": ports}
        async with running_server(tmp_path, models=[TINY], control=control) as server:
            assert server.serving.agents == "memory"
            node = server.nodes.join(inventory("n1", port_range=(engine.port, engine.port)))

            async def is_assigned() -> bool:
                return bool(node.shards)

            await until(is_assigned)
            (shard,) = node.shards
            assert node.shards[shard].spec.served_names == ("tiny",)
            server.nodes.enter(shard, ShardState.STARTING, ShardState.READY)

            async def is_answered() -> bool:
                asked = await server.api.post(
                    "/v1/chat/completions", json={**CHAT, "model": "tiny"}
                )
                return asked.status_code == 200 and asked.json() == ANSWER

            await until(is_answered)
            listed = (await server.admin.get("/admin/v1/nodes")).json()
            assert "n1" in str(listed)
            page = (await server.admin.get("/metrics")).text
            assert 'llmgw_nodes{state="ready"} 1.0' in page
            assert "llmgw_config_reload_failed 0" in page
            list(text_string_to_metric_families(page))


async def test_what_the_files_say_is_in_the_stores_catalog(tmp_path: Path) -> None:
    async with running_server(tmp_path, models=[TINY], control={"dispatcher": "memory"}) as server:
        catalog = (await server.admin.get("/admin/v1/models")).json()
        assert "tiny" in str(catalog)
    async with running_server(
        tmp_path, models=[{**TINY, "name": "other"}], control={"dispatcher": "memory"}
    ) as server:
        catalog = (await server.admin.get("/admin/v1/models")).json()
        assert "tiny" not in str(catalog)
        assert "other" in str(catalog)


async def test_a_model_of_a_file_whose_name_the_api_owns_shows_as_a_problem(
    tmp_path: Path,
) -> None:
    control = {"dispatcher": "memory", "enabled": "on"}
    async with running_server(tmp_path, control=control) as server:
        done = await server.admin.put("/admin/v1/catalog/tiny", json={"model": TINY})
        assert done.status_code == 200, done.text
    async with running_server(tmp_path, models=[TINY], control=control) as server:

        async def is_told() -> bool:
            told = (await server.admin.get("/admin/v1/status")).json()["problems"]
            return any("models of the files are not in force" in item for item in told)

        await until(is_told)
        page = (await server.admin.get("/metrics")).text
        assert "llmgw_config_reload_failed 1" in page


async def test_a_store_with_nothing_in_it_and_no_endpoint_names_both_ways_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "llmgw.db").touch()
    with pytest.raises(ExceptionGroup) as raised:
        async with running_server(tmp_path):
            pass
    assert raised.group_contains(ConfigError, match="--endpoint id=URL=model")


async def test_without_a_dispatcher_the_package_to_install_is_named(tmp_path: Path) -> None:
    flags = {
        "models": [TINY],
        "state_dir": str(tmp_path),
        "listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "agent_listen": "127.0.0.1:0",
    }
    registry = registry_of_fakes()
    loaded = load_server(None, {}, flags, installed=registry.installed)
    server = Server(loaded, registry, clock=SystemClock())
    with pytest.raises(ConfigError, match="'grpc' is not there; pip install llmgw-agent"):
        await server.run(task_status=anyio.TASK_STATUS_IGNORED)


@pytest.mark.parametrize("name", ["listen", "admin_listen", "agent_listen"])
async def test_a_taken_address_is_named_and_nothing_stays_bound(tmp_path: Path, name: str) -> None:
    with listen(Address("127.0.0.1", 0)) as taken:
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        address: dict[str, Any] = {name: busy}
        with pytest.raises(ExceptionGroup) as raised:
            async with running_server(
                tmp_path, models=[TINY], control={"dispatcher": "memory"}, **address
            ):
                pass
        assert raised.group_contains(ConfigError, match=f"{name}: {busy} is already in use")
    async with running_server(tmp_path, models=[TINY], control={"dispatcher": "memory"}):
        pass


async def test_a_stop_lets_streams_end_and_takes_no_new_request(tmp_path: Path) -> None:
    slow = Script.events("1", end=[Wait(1.0), Send(chunk(b"data: 2\n\n")), Send(b"0\r\n\r\n")])
    async with (
        ScriptedEngine(slow) as engine,
        running_server(tmp_path, endpoints=[endpoint(engine)]) as server,
        server.api.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer,
    ):
        pieces = answer.aiter_bytes()
        assert b"data: 1" in await anext(pieces)
        server.server.stop()

        async def is_closed() -> bool:
            try:
                stream = await anyio.connect_tcp(server.serving.api.host, server.serving.api.port)
            except OSError:
                return True
            await stream.aclose()
            return False

        await until(is_closed)
        assert b"data: 2" in b"".join([piece async for piece in pieces])


async def test_a_stop_ends_what_never_ends_by_itself_at_once(tmp_path: Path) -> None:
    """Followed logs and feeds are no reason to wait; a request is (C038)."""
    async with (
        ScriptedEngine() as engine,
        running_server(tmp_path, endpoints=[endpoint(engine)]) as server,
        server.admin.stream("GET", "/admin/v1/feed") as feed,
    ):
        lines = feed.aiter_lines()
        assert "snapshot" in await anext(lines)
        server.server.stop()
        with anyio.fail_after(4), pytest.raises(httpx.RemoteProtocolError):
            async for _ in lines:
                pass


async def test_a_reload_changes_endpoints_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "llmgw.yaml"

    def write(engine: ScriptedEngine, model: str) -> None:
        file.write_text(
            f"endpoints:\n  - {{id: e1, url: '{engine.url}', models: [{model}],"
            " health_path: null}\n"
        )

    async with ScriptedEngine(Script.plain(ANSWER)) as engine:
        write(engine, "one")
        async with running_server(tmp_path / "state", config=file) as server:
            assert await models(server) == ["one"]
            write(engine, "two")
            server.server.reload()

            async def is_two() -> bool:
                return await models(server) == ["two"]

            await until(is_two)
            file.write_text("endpoints: [\n")
            server.server.reload()
            await anyio.sleep(0.2)
            assert await is_two()


async def test_off_loopback_a_key_is_asked_for(tmp_path: Path) -> None:
    async with (
        ScriptedEngine(Script.plain(ANSWER)) as engine,
        running_server(tmp_path, endpoints=[endpoint(engine)], auth={"api_keys": "on"}) as server,
    ):
        refused = await server.api.post("/v1/chat/completions", json=CHAT)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
