"""The router as a whole: models, health, metrics, access records, tables that change."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from llmgw.config.server import RouterSettings
from llmgw.domain.ids import Epoch, ModelName
from llmgw.router.routes import COLD, HOT, hot_table
from llmgw.testing.engine_script import Hang, Script, ScriptedEngine
from llmgw.testing.eventually import eventually
from llmgw.testing.raw_http import connect, get, post

pytestmark = pytest.mark.anyio

OK = Script.plain({"usage": {"prompt_tokens": 1, "completion_tokens": 2}})


async def test_models_with_slashes_and_colons_are_found_raw_and_escaped(
    start_router: Any, make_endpoint: Any
) -> None:
    models = (ModelName("acme/tiny-7b:q4"), ModelName("tiny"))
    router = await start_router(endpoints=[make_endpoint("http://127.0.0.1:1", models=models)])
    listed = await router.ask(get("/v1/models"))
    assert [card["id"] for card in listed.json()["data"]] == list(models)
    for path in ("/v1/models/acme/tiny-7b:q4", "/v1/models/acme%2Ftiny-7b%3Aq4"):
        assert (await router.ask(get(path))).json()["id"] == "acme/tiny-7b:q4"
    unknown = await router.ask(get("/v1/models/acme/other"))
    assert unknown.status == 404
    assert unknown.error()["code"] == "model_not_found"


async def test_health_is_open_and_readiness_follows_the_table_and_the_drain(
    start_router: Any,
) -> None:
    router = await start_router(keys_open=False)
    for path in ("/healthz", "/health"):
        assert (await router.ask(get(path))).status == 200
    assert (await router.ask(get("/readyz"))).status == 503
    ready = await start_router("http://127.0.0.1:1", keys_open=False)
    assert (await ready.ask(get("/readyz"))).status == 200
    await ready.router.drain(0.1)
    assert (await ready.ask(get("/readyz"))).status == 503


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("/chat/completions", "'/v1/chat/completions' is meant?"),
        ("/v1/v1/chat/completions", "'/v1/chat/completions' is meant?"),
        ("/v1/chat/completions/", "'/v1/chat/completions' is meant?"),
        ("/models", "'/v1/models' is meant?"),
        ("/", "routes are /v1/chat/completions, /v1/completions and the like"),
        ("/v3/nothing", "routes are /v1/chat/completions, /v1/completions and the like"),
    ],
)
async def test_a_path_that_there_is_not_names_the_one_that_was_meant(
    start_router: Any, asked: str, meant: str
) -> None:
    router = await start_router("http://127.0.0.1:1")
    answer = await router.ask(post(asked, {"model": "demo"}))
    assert (answer.status, answer.error()["code"]) == (404, "unknown_route")
    assert answer.error()["message"] == f"there is no route {asked!r}; {meant}"


async def test_every_route_without_a_key_is_401_unless_it_is_declared_public(
    start_router: Any,
) -> None:
    router = await start_router("http://127.0.0.1:1", keys_open=False)
    for route in (*HOT, *COLD):
        path = route.path.replace("{model}", "demo")
        request = post(path, {"model": "demo"}) if "POST" in route.methods else get(path)
        answer = await router.ask(request)
        assert answer.status == (401 if route.scope else answer.status)
        assert (answer.status < 400 or answer.status == 503) is (route.scope is None)


@pytest.mark.parametrize("route", HOT, ids=lambda route: route.path)
async def test_every_inference_route_reaches_the_engine_by_its_own_path(
    start_router: Any, route: Any
) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url)
        form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ndemo\r\n--x--\r\n'
        if route.model == "multipart":
            request = post(
                route.path, form, headers={"content-type": "multipart/form-data; boundary=x"}
            )
        else:
            request = post(route.path, {"model": "demo"})
        assert (await router.ask(request)).status == 200
    assert engine.requests[0].line == f"POST {route.engine_path} HTTP/1.1"


def test_a_route_declared_twice_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match="declared twice"):
        hot_table(routes=(HOT[0], HOT[0]))


async def test_a_path_prefix_stands_before_every_route(start_router: Any) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url, settings=RouterSettings(path_prefix="/llm"))
        asked = await router.ask(post("/llm/v1/chat/completions", {"model": "demo"}))
        listed = await router.ask(get("/llm/v1/models"))
        outside = await router.ask(post("/v1/chat/completions", {"model": "demo"}))
    assert (asked.status, listed.status, outside.status) == (200, 200, 404)
    assert engine.requests[0].line.split()[1] == "/v1/chat/completions"


async def test_access_records_say_what_happened_and_nothing_of_the_content(
    start_router: Any,
) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url)
        await router.ask(post("/v1/chat/completions", {"model": "demo", "messages": ["SECRET"]}))
        router.router._access.close()
    line = router.access.getvalue()
    assert b"SECRET" not in line
    record = json.loads(line)
    assert record["model"] == "demo"
    assert record["endpoint"] == "e1"
    assert record["outcome"] == "ok"
    assert record["completion_tokens"] == 2


async def test_metrics_count_by_model_endpoint_and_outcome(start_router: Any) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url)
        await router.chat()
        engine.script = Script.events(
            '{"choices": [{}]}', '{"choices": [], "usage": {"completion_tokens": 5}}'
        )
        await router.chat(stream=True)
        page = (await router.router.metrics_page()).decode()
    labels = 'model="demo",endpoint="e1"'
    assert f'llmgw_requests_total{{{labels},outcome="ok"}} 2' in page
    assert f"llmgw_requests_in_flight{{{labels}}} 0" in page
    assert f'gen_ai_client_token_usage_total{{{labels},gen_ai_token_type="output"}} 7' in page
    assert f"gen_ai_server_time_to_first_token_seconds_count{{{labels}}} 1" in page
    assert f'gen_ai_server_request_duration_seconds_bucket{{{labels},le="+Inf"}} 2' in page


async def test_series_of_an_endpoint_that_left_go_with_it(
    start_router: Any, make_endpoint: Any
) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url)
        await router.chat()
        router.router.publish_endpoints((make_endpoint(engine.url, name="other"),), Epoch(2))
        page = (await router.router.metrics_page()).decode()
    assert 'endpoint="e1"' not in page


async def test_a_stream_goes_on_while_its_endpoint_leaves_the_table(start_router: Any) -> None:
    script = Script((*Script.events('{"choices": []}').steps[:2], Hang()))
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            client.send(post("/v1/chat/completions", {"model": "demo", "stream": True}))
            answer = await client.answer(head_only=True)
            router.router.publish_endpoints((), Epoch(2))
            assert answer.status == 200
            assert not await client.is_closed(0.2)
            assert not engine.requests[0].peer_left
            assert router.router.usage().endpoints["e1"].in_flight == 1
        await engine.wait_until(lambda engine: engine.requests[0].peer_left)
    await eventually(
        lambda: not any(one.in_flight for one in router.router.usage().endpoints.values())
    )


async def test_two_hundred_clients_that_leave_in_mid_stream_leave_nothing_behind(
    start_router: Any,
) -> None:
    script = Script((*Script.events('{"choices": []}').steps[:2], Hang()))
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        for _ in range(10):
            clients = [await asyncio.open_connection("127.0.0.1", router.port) for _ in range(20)]
            for _, writer in clients:
                writer.write(post("/v1/chat/completions", {"model": "demo", "stream": True}))
            for reader, writer in clients:
                await reader.readuntil(b"data: ")
                writer.transport.abort()
        await router.settled()
        await engine.wait_until(lambda engine: not engine.open_connections)
        await eventually(lambda: not router.router.metrics.connections)
    assert len(engine.requests) == 200
    assert not router.server.server_state.connections
    page = (await router.router.metrics_page()).decode()
    assert 'outcome="client_left"} 200' in page
