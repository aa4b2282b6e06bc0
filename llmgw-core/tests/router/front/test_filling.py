"""Large bodies, which are read past the parser."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from llmgw.config.server import Deadlines, RouterSettings
from llmgw.router.front.filling import Filling
from llmgw.testing.engine_script import ScriptedEngine
from llmgw.testing.eventually import eventually
from llmgw.testing.raw_http import connect, post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"


def body_of(size: int) -> bytes:
    """Return a body of so many bytes, no two parts of which are alike."""
    start, end = b'{"model": "demo", "prompt": "', b'"}'
    words = b"".join(b"%08x" % number for number in range(size // 8 + 1))
    return start + words[: size - len(start) - len(end)] + end


def fillings(running: Any) -> int:
    """Return how many connections are being read past the parser."""
    return sum(
        isinstance(connection.transport.get_protocol(), Filling)
        for connection in running.server.server_state.connections
        if connection.transport is not None
    )


@pytest.mark.parametrize("size", [70_000, 200_000, 1_000_000, 4_000_000, 5_000_000])
@pytest.mark.parametrize("piece", [1 << 14, 1 << 17, 1 << 23])
async def test_a_body_arrives_as_it_was_sent_and_what_follows_it_too(
    start_router: Any, size: int, piece: int
) -> None:
    large, small = body_of(size), b'{"model": "demo"}'
    sent = post(CHAT, large) + post(CHAT, small) + post(CHAT, large) + post(CHAT, small)
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            for at in range(0, len(sent), piece):
                client.send(sent[at : at + piece])
                await client.writer.drain()
            assert [(await client.answer()).status for _ in range(4)] == [200] * 4
        assert not fillings(router)
    assert [request.body for request in engine.requests] == [large, small, large, small]


async def begun(router: Any, client: Any, request: bytes) -> None:
    """Send half of a request, and return once the rest is awaited past the parser."""
    client.send(request[: len(request) // 2])
    await eventually(lambda: fillings(router) == 1)


async def test_it_may_pause_and_ends_with_the_last_byte(start_router: Any) -> None:
    request = post(CHAT, body_of(1_000_000), headers={"expect": "100-continue"})
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            await begun(router, client, request)
            assert (await client.answer()).status == 100
            client.send(request[len(request) // 2 : -1])
            await asyncio.sleep(0.05)
            assert fillings(router) == 1
            assert not engine.requests
            client.send(request[-1:])
            assert (await client.answer()).status == 200
    assert json.loads(engine.requests[0].body)["model"] == "demo"


async def test_a_client_that_goes_midway_leaves_nothing_behind(start_router: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        for reset in (True, False):
            async with connect(router.port) as client:
                await begun(router, client, post(CHAT, body_of(1_000_000)))
                if reset:
                    client.reset()
            await eventually(lambda: not router.router.front.count)
        assert not router.server.server_state.connections
    assert not engine.requests


async def test_a_body_that_does_not_go_on_is_408(start_router: Any) -> None:
    settings = RouterSettings(deadlines=Deadlines(request_body_idle=0.5))
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url, settings=settings)
        async with connect(router.port) as client:
            await begun(router, client, post(CHAT, body_of(1_000_000)))
            answer = await client.answer()
            assert answer.status == 408
            # What still comes is read and dropped, so that the answer is not reset away.
            client.send(b"x" * 100_000)
            assert await client.is_closed()
    assert not engine.requests


async def test_a_body_that_goes_on_for_longer_than_it_may_pause_is_taken(
    start_router: Any,
) -> None:
    settings = RouterSettings(deadlines=Deadlines(request_body_idle=1.0))
    request = post(CHAT, body_of(600_000))
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url, settings=settings)
        async with connect(router.port) as client:
            for at in range(0, len(request), 100_000):
                client.send(request[at : at + 100_000])
                await asyncio.sleep(0.3)
            assert (await client.answer()).status == 200
    assert len(engine.requests) == 1


async def test_what_is_no_json_is_refused_once_it_is_whole_and_the_connection_goes_on(
    start_router: Any,
) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            client.send(post(CHAT, b"x" * 1_000_000))
            assert (await client.answer()).error()["code"] == "invalid_json"
            client.send(post(CHAT, body_of(1_000_000)))
            assert (await client.answer()).status == 200
    assert len(engine.requests) == 1
