"""Plain answers put together from a stream, for engines that only then notice a leaving client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmgw.testing.engine_script import Close, Hang, Script, ScriptedEngine
from llmgw.testing.raw_http import connect, post

pytestmark = pytest.mark.anyio


@pytest.fixture
def start_llamacpp(start_router: Any, make_endpoint: Any) -> Any:
    async def start(engine: Any, **more: Any) -> Any:
        return await start_router(
            endpoints=[make_endpoint(engine.url, cancels_plain_requests=False, **more)]
        )

    return start


def chunk(*choices: dict[str, Any], **more: object) -> str:
    return json.dumps(
        {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "demo",
            "choices": list(choices),
            **more,
        }
    )


def delta(index: int = 0, finish: str | None = None, **fields: object) -> dict[str, Any]:
    return {"index": index, "delta": fields, "finish_reason": finish}


async def test_a_chat_is_put_together(start_llamacpp: Any) -> None:
    script = Script.events(
        chunk(delta(role="assistant", content=None)),
        chunk(delta(content="Hello "), delta(1, content="Bon")),
        chunk(delta(content="world"), delta(1, content="jour")),
        chunk(delta(reasoning_content="hm")),
        chunk(delta(finish="stop"), delta(1, finish="length")),
        chunk(usage={"prompt_tokens": 5, "completion_tokens": 6}, timings={"predicted_n": 6}),
    )
    async with ScriptedEngine(script) as engine:
        router = await start_llamacpp(engine)
        answer = await router.chat(n=2)
    sent = engine.requests[0].json()
    assert sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True}
    assert answer.header("content-type") == "application/json"
    whole = answer.json()
    assert whole["object"] == "chat.completion"
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 6}
    assert whole["timings"] == {"predicted_n": 6}
    first, second = whole["choices"]
    assert first["message"] == {
        "role": "assistant",
        "content": "Hello world",
        "reasoning_content": "hm",
    }
    assert (first["finish_reason"], second["finish_reason"]) == ("stop", "length")
    assert second["message"]["content"] == "Bonjour"
    assert router.router.ledger.batch().records[0].completion_tokens == 6


async def test_tool_calls_and_logprobs_are_put_together(start_llamacpp: Any) -> None:
    def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        return {
            "index": index,
            "function": {"arguments": arguments, **more.pop("function", {})},
            **more,
        }

    script = Script.events(
        chunk(
            delta(
                role="assistant",
                tool_calls=[call(0, "", id="a", type="function", function={"name": "add"})],
            )
        ),
        chunk(delta(tool_calls=[call(1, "{", id="b", type="function", function={"name": "sub"})])),
        chunk(delta(tool_calls=[call(0, '{"x":'), call(1, "}")])),
        chunk({**delta(tool_calls=[call(0, "1}")]), "logprobs": {"content": [{"token": "a"}]}}),
        chunk({**delta(finish="tool_calls"), "logprobs": {"content": [{"token": "b"}]}}),
    )
    async with ScriptedEngine(script) as engine:
        router = await start_llamacpp(engine)
        answer = await router.chat()
    (choice,) = answer.json()["choices"]
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "sub", "arguments": "{}"}},
    ]
    assert choice["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}]}


async def test_a_completion_is_put_together(start_llamacpp: Any) -> None:
    def text(piece: str, **more: object) -> str:
        choice = {
            "index": 0,
            "text": piece,
            "logprobs": {"tokens": [piece]},
            "finish_reason": None,
            **more,
        }
        return json.dumps(
            {"id": "c", "object": "text_completion", "model": "demo", "choices": [choice]}
        )

    async with ScriptedEngine(
        Script.events(text("one "), text("two", finish_reason="stop"))
    ) as engine:
        router = await start_llamacpp(engine)
        answer = await router.ask(
            post("/v1/completions", {"model": "demo", "prompt": "x", "stream": False})
        )
    assert engine.requests[0].json()["stream"] is True
    whole = answer.json()
    assert whole["object"] == "text_completion"
    assert whole["choices"] == [
        {
            "index": 0,
            "text": "one two",
            "logprobs": {"tokens": ["one ", "two"]},
            "finish_reason": "stop",
        }
    ]


@pytest.mark.parametrize("end", [Close(), Close(reset=True)])
async def test_an_engine_that_dies_midway_is_an_error_never_half_an_answer(
    start_llamacpp: Any, end: Any
) -> None:
    async with ScriptedEngine(Script.events(chunk(delta(content="half")), end=[end])) as engine:
        router = await start_llamacpp(engine)
        answer = await router.chat()
    assert answer.status == 502
    assert len(engine.requests) == 1


async def test_an_error_in_the_stream_becomes_the_answer(start_llamacpp: Any) -> None:
    error = '{"error": {"message": "no slot", "code": 500}}'
    async with ScriptedEngine(Script.events(chunk(delta(content="half")), error)) as engine:
        router = await start_llamacpp(engine)
        answer = await router.chat()
    assert answer.status == 500
    assert answer.error()["message"] == "no slot"
    assert router.in_flight == 0


async def test_a_client_that_leaves_stops_the_engine(start_llamacpp: Any) -> None:
    script = Script.events(chunk(delta(content="x")), end=[Hang()])
    async with ScriptedEngine(script) as engine:
        router = await start_llamacpp(engine)
        async with connect(router.port) as client:
            client.send(post("/v1/chat/completions", {"model": "demo", "messages": []}))
            await engine.wait_until(lambda engine: bool(engine.requests))
        await engine.wait_until(lambda engine: engine.requests[0].peer_left)
        await router.settled()


async def test_other_routes_are_asked_as_they_are(start_llamacpp: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_llamacpp(engine)
        await router.ask(post("/v1/embeddings", {"model": "demo", "input": "x"}))
    assert engine.requests[0].json() == {"model": "demo", "input": "x"}
