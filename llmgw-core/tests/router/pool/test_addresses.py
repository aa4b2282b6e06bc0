"""Where requests to an endpoint go: to its address as it is now, and nowhere if that is none."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.config.server import RouterSettings
from llmgw.domain.ids import Epoch
from llmgw.testing.engine_script import Script, ScriptedEngine, Until
from llmgw.testing.eventually import eventually
from llmgw.testing.raw_http import connect, post

pytestmark = pytest.mark.anyio


class Stream:
    """An answer that ends when it is told to."""

    def __init__(self) -> None:
        self.may_end = False
        steps = Script.events('{"choices": []}').steps
        self.script = Script((*steps[:2], Until(lambda: self.may_end), *steps[2:]))


@pytest.mark.parametrize("change", ["address", "process"])
async def test_a_stream_that_outlives_its_endpoints_process_leads_no_later_request_there(
    start_router: Any, make_endpoint: Any, change: str
) -> None:
    stream = Stream()
    async with ScriptedEngine(stream.script) as old, ScriptedEngine() as new:
        moved = {
            "address": make_endpoint(new.url, incarnation="1"),
            "process": make_endpoint(old.url, incarnation="2"),
        }
        router = await start_router(endpoints=[make_endpoint(old.url, incarnation="1")])
        async with connect(router.port) as client:
            client.send(post("/v1/chat/completions", {"model": "demo", "stream": True}))
            answer = await client.answer(head_only=True)
            router.router.publish_endpoints((moved[change],), Epoch(2))
            stream.may_end = True
            await client.read_body(answer)
            assert answer.ended
        await router.settled()
        assert (await router.chat(stream=True)).status == 200
    by_address = {"address": (1, 1), "process": (2, 0)}[change]
    assert (old.connections, new.connections) == by_address


async def test_a_connection_outlives_a_change_that_leaves_the_process_alone(
    start_router: Any, make_endpoint: Any
) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(endpoints=[make_endpoint(engine.url)])
        await router.chat()
        router.router.publish_endpoints((make_endpoint(engine.url, weight=2.0),), Epoch(2))
        await router.chat()
    assert engine.connections == 1


@pytest.mark.parametrize(
    "url", ["http://x:99999", "http://[::1", "http://движок:8000", "http://a..b:8000", "nonsense"]
)
async def test_an_address_that_makes_no_sense_ends_the_requests_that_go_there_and_nothing_else(
    start_router: Any, make_endpoint: Any, url: str
) -> None:
    async with ScriptedEngine() as engine:
        good = make_endpoint(engine.url, name="good")
        bad = make_endpoint(url, name="bad", models=("other",), health_path="/health")
        settings = RouterSettings.model_validate({"health": {"bad": 1}})
        router = await start_router(endpoints=[good, bad], settings=settings)
        answer = await router.ask(post("/v1/chat/completions", {"model": "other"}))
        assert answer.status == 502
        assert answer.error()["code"] == "engine_unreachable"
        bad_state = next(
            state for state in router.router.selector.states() if state.endpoint.id == "bad"
        )
        await eventually(lambda: not bad_state.is_answering)
        assert not bad_state.in_flight
        assert (await router.chat()).status == 200
