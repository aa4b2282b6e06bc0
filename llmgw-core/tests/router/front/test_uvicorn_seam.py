"""What uvicorn asks of a protocol class: pinned here, so that an upgrade that breaks it fails."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.testing.engine_script import Hang, Script, ScriptedEngine, Wait
from llmgw.testing.eventually import eventually
from llmgw.testing.raw_http import connect, get, post

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


async def test_connections_are_in_uvicorn_s_set_while_they_are_open(start_router: Any) -> None:
    router = await start_router()
    connections = router.server.server_state.connections
    async with connect(router.port) as client:
        client.send(get("/healthz"))
        await client.answer()
        assert len(connections) == 1
    await eventually(lambda: not connections)


async def test_a_cold_request_is_one_of_uvicorn_s_tasks_until_it_ends(start_router: Any) -> None:
    router = await start_router()
    await router.ask(get("/v1/models"))
    await eventually(lambda: not router.server.server_state.tasks)
    assert router.server.server_state.total_requests == 1


async def test_shutdown_closes_idle_connections_and_lets_a_stream_end(start_router: Any) -> None:
    script = Script(
        (*Script.events('{"choices": []}').steps[:2], Wait(0.3), *Script.events("x").steps[1:])
    )
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as idle, connect(router.port) as busy:
            idle.send(get("/healthz"))
            await idle.answer()
            busy.send(
                post("/v1/chat/completions", {"model": "demo", "stream": True, "messages": []})
            )
            answer = await busy.answer(head_only=True)
            for connection in list(router.server.server_state.connections):
                connection.shutdown()
            assert await idle.is_closed()
            await busy.read_body(answer)
            assert answer.ended
            assert await busy.is_closed()


async def test_answers_carry_uvicorn_s_default_headers(start_router: Any) -> None:
    router = await start_router()
    answer = await router.ask(get("/healthz"))
    assert answer.header("date")


async def test_an_aborted_transport_ends_the_exchange(start_router: Any) -> None:
    """This is how a server cuts what is left after its drain limit."""
    async with ScriptedEngine(Script.raw(Hang())) as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            client.send(post("/v1/chat/completions", {"model": "demo", "messages": []}))
            await engine.wait_until(lambda engine: bool(engine.requests))
            for connection in list(router.server.server_state.connections):
                connection.transport.abort()
            assert await client.is_closed()
        await router.settled()
