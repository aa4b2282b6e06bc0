"""Requests for models that sleep: held, kept alive, answered or told why not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from llmgw.config.server import Deadlines, RouterSettings
from llmgw.domain.endpoints import ModelState, ModelStatus
from llmgw.domain.ids import Epoch, ModelName
from llmgw.testing.engine_script import Script, ScriptedEngine
from llmgw.testing.eventually import eventually
from llmgw.testing.raw_http import connect, post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"


class Nudges:
    def __init__(self: Any) -> None:
        self.models: list[str] = []
        self.event = asyncio.Event()

    def nudge(self: Any, model: ModelName) -> None:
        self.models.append(model)
        self.event.set()


@pytest.fixture
async def asleep(start_router: Any) -> Any:
    status = ModelStatus(names=(ModelName("demo"),), state=ModelState.ASLEEP, expected_wait_s=3.0)
    settings = RouterSettings(deadlines=Deadlines(hold_commit=0.25, wake_wait=1.2))
    router = await start_router(models=[status], settings=settings)
    router.router.nudges = Nudges()
    return router


async def test_many_waiters_make_one_nudge_and_all_are_served(
    asleep: Any, make_endpoint: Any
) -> None:
    async with ScriptedEngine(Script.plain({"ok": 1})) as engine:
        asked = [asyncio.create_task(asleep.chat()) for _ in range(20)]
        await asleep.router.nudges.event.wait()
        await eventually(lambda: asleep.router.usage().queued.get("demo") == 20)
        asleep.router.publish_endpoints((make_endpoint(engine.url),), Epoch(1))
        answers = await asyncio.gather(*asked)
    assert {answer.status for answer in answers} == {200}
    assert asleep.router.nudges.models == ["demo"]


async def test_a_held_stream_is_kept_alive_and_then_answered(
    asleep: Any, make_endpoint: Any
) -> None:
    async with (
        ScriptedEngine(Script.events('{"choices": []}')) as engine,
        connect(asleep.port) as client,
    ):
        client.send(post(CHAT, {"model": "demo", "stream": True}))
        answer = await client.answer(head_only=True)
        assert answer.status == 200
        assert answer.header("x-llmgw-endpoint") is None
        asleep.router.publish_endpoints((make_endpoint(engine.url),), Epoch(1))
        await client.read_body(answer)
    assert answer.body.startswith(b": waiting for the model\n\n")
    assert answer.events() == ['{"choices": []}', "[DONE]"]


async def test_a_wake_that_fails_is_an_error_event_for_streams_and_503_for_others(
    asleep: Any,
) -> None:
    stream, plain = await asyncio.gather(asleep.chat(stream=True), asleep.chat())
    assert stream.status == 200
    assert json.loads(stream.events()[-1])["error"]["code"] == "no_endpoint"
    assert not stream.ended
    assert plain.status == 503
    assert int(plain.header("retry-after")) >= 1


async def test_a_held_stream_that_gets_a_plain_answer_is_told_of_an_error(
    asleep: Any, make_endpoint: Any
) -> None:
    async with (
        ScriptedEngine(Script.plain({"no": "stream"})) as engine,
        connect(asleep.port) as client,
    ):
        client.send(post(CHAT, {"model": "demo", "stream": True}))
        answer = await client.answer(head_only=True)
        asleep.router.publish_endpoints((make_endpoint(engine.url),), Epoch(1))
        await client.read_body(answer)
    assert "engine_lost" in answer.events()[-1]
    assert not answer.ended


async def test_the_messages_api_pings_with_its_own_event(asleep: Any) -> None:
    answer = await asleep.ask(post("/v1/messages", {"model": "demo", "stream": True}))
    assert answer.body.startswith(b'event: ping\ndata: {"type":"ping"}\n\n')
    assert b"event: error\ndata: " in answer.body


async def test_a_client_that_leaves_the_queue_is_never_sent_to_an_engine(
    asleep: Any, make_endpoint: Any
) -> None:
    async with connect(asleep.port) as client:
        client.send(post(CHAT, {"model": "demo"}))
        await asleep.router.nudges.event.wait()
    await eventually(lambda: not asleep.router.usage().queued)
    async with ScriptedEngine(Script.plain({"ok": 1})) as engine:
        asleep.router.publish_endpoints((make_endpoint(engine.url),), Epoch(1))
        assert (await asleep.chat()).status == 200
    assert len(engine.requests) == 1


async def test_whoever_waits_at_the_end_of_the_router_is_told_so(asleep: Any) -> None:
    asked = asyncio.create_task(asleep.chat())
    await eventually(lambda: asleep.router.usage().queued.get("demo"))
    await asleep.router.drain(0.2)
    answer = await asked
    assert answer.status == 503
    assert answer.error()["code"] == "shutting_down"
    assert answer.header("retry-after") == "1"
