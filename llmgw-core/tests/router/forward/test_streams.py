"""Streams between two sockets: bytes as the engine sent them, and every way that they end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from llmgw.testing.engine_script import Close, Hang, Script, ScriptedEngine, Send, chunk, event
from llmgw.testing.raw_http import connect, post

pytestmark = pytest.mark.anyio


def piece(text: str, **more: object) -> str:
    return json.dumps(
        {
            "id": "c1",
            "object": "chat.completion.chunk",
            "model": "demo",
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
            **more,
        }
    )


async def test_events_reach_the_client_as_the_engine_sent_them(start_router: Any) -> None:
    script = Script.events(piece("one"), piece("naïve 北京 🙂"))
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        answer = await router.chat(stream=True)
    assert answer.status == 200
    assert answer.body == event(piece("one")) + event(piece("naïve 北京 🙂")) + event("[DONE]")
    assert answer.ended


async def test_a_stream_says_that_nobody_may_hold_it_back(start_router: Any) -> None:
    async with ScriptedEngine(Script.events(piece("x"))) as engine:
        router = await start_router(engine.url)
        answer = await router.chat(stream=True)
    assert answer.header("content-type") == "text/event-stream; charset=utf-8"
    assert answer.header("cache-control") == "no-cache"
    assert answer.header("x-accel-buffering") == "no"
    assert answer.header("content-length") is None


async def test_a_letter_cut_in_two_by_the_network_stays_one(start_router: Any) -> None:
    raw = event(piece("naïve 北京 🙂 ž"))
    raw = raw.decode("unicode_escape").encode("utf-8", "surrogatepass") if b"\\u" in raw else raw
    head = Script.events().steps[0]
    steps = [head, *(Send(chunk(raw[i : i + 1])) for i in range(len(raw)))]
    script = Script((*steps, Send(chunk(event("[DONE]"))), Send(b"0\r\n\r\n")))
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        answer = await router.chat(stream=True)
    assert answer.body == raw + event("[DONE]")


@pytest.mark.parametrize("end", [Close(), Close(reset=True)], ids=["closes", "resets"])
async def test_an_engine_that_dies_midway_ends_in_an_error_event_and_no_done(
    start_router: Any, end: Any
) -> None:
    half = Send(chunk(b'data: {"id":"c1","object":"chat.comp'))
    async with ScriptedEngine(Script.events(piece("one"), end=[half, end])) as engine:
        router = await start_router(engine.url)
        answer = await router.chat(stream=True)
        await router.settled()
    first, last = answer.events()
    assert first == piece("one")
    assert json.loads(last)["error"]["code"] == "engine_lost"
    assert not answer.ended
    assert len(engine.requests) == 1


async def test_an_error_event_of_the_engine_ends_the_stream_without_done(start_router: Any) -> None:
    error = '{"error": {"message": "EngineCore died. See /opt/venv/x/y.py", "code": 500}}'
    async with ScriptedEngine(Script.events(piece("one"), error)) as engine:
        router = await start_router(engine.url)
        answer = await router.chat(stream=True)
    last = json.loads(answer.events()[-1])["error"]
    assert last["type"] == "api_error"
    assert "/opt" not in last["message"]
    assert not answer.ended


async def test_an_error_as_first_event_is_tried_elsewhere(
    start_router: Any, make_endpoint: Any
) -> None:
    broken = Script.events('{"error": {"message": "KV cache exhausted", "code": 500}}')
    async with ScriptedEngine(broken) as bad, ScriptedEngine(Script.events(piece("x"))) as good:
        router = await start_router(
            endpoints=[
                make_endpoint(bad.url, name="bad", priority=1),
                make_endpoint(good.url, name="good"),
            ]
        )
        answers = [await router.chat(stream=True) for _ in range(3)]
    assert {answer.status for answer in answers} == {200}
    assert {answer.header("x-llmgw-endpoint") for answer in answers} == {"good"}
    assert len(bad.requests) == 3


async def test_an_error_as_first_event_of_the_only_engine_is_a_status(start_router: Any) -> None:
    broken = Script.events('{"error": {"message": "KV cache exhausted", "code": 500}}')
    async with ScriptedEngine(broken) as engine:
        router = await start_router(engine.url)
        answer = await router.chat(stream=True)
    assert answer.status == 500
    assert answer.header("content-type") == "application/json"
    assert answer.error()["message"] == "KV cache exhausted"


@pytest.mark.parametrize(("last", "whole"), [("[DONE]", True), (piece("two"), False)])
async def test_a_stream_that_ends_with_its_connection_is_whole_only_if_it_says_so(
    start_router: Any, last: str, whole: bool
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    script = Script.raw(head, event(piece("one")), event(last), Close())
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        answer = await router.chat(stream=True)
    assert answer.ended is whole
    assert ("engine_lost" in answer.events()[-1]) is not whole


async def test_a_silent_engine_is_given_up_after_the_limit(start_router: Any, quick: Any) -> None:
    async with ScriptedEngine(Script.events(piece("one"), end=[Hang()])) as engine:
        router = await start_router(engine.url, settings=quick(between_chunks=0.3))
        answer = await router.chat(stream=True)
        await engine.wait_until(lambda engine: engine.requests[0].peer_left)
    assert json.loads(answer.events()[-1])["error"]["code"] == "between_chunks_timeout"
    assert not answer.ended
    assert router.in_flight == 0


@pytest.mark.parametrize(
    ("options", "shows"),
    [
        ({}, False),
        ({"stream_options": None}, False),
        ({"stream_options": {}}, False),
        ({"stream_options": {"include_usage": False}}, False),
        ({"stream_options": {"include_usage": True}}, True),
    ],
)
async def test_usage_is_asked_for_always_and_shown_only_when_the_client_asked(
    start_router: Any, options: Any, shows: Any
) -> None:
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}})
    async with ScriptedEngine(Script.events(piece("x", usage=None), usage)) as engine:
        router = await start_router(engine.url)
        answer = await router.chat(stream=True, **options)
    assert engine.requests[0].json()["stream_options"] == {"include_usage": True}
    assert (usage in answer.events()) is shows
    assert answer.events()[-1] == "[DONE]"
    record = router.router.ledger.batch().records[0]
    assert (record.prompt_tokens, record.completion_tokens) == (5, 7)


async def test_usage_beside_a_choice_is_never_taken_out(start_router: Any) -> None:
    last = piece("", usage={"prompt_tokens": 1, "completion_tokens": 2})
    async with ScriptedEngine(Script.events(piece("x"), last)) as engine:
        router = await start_router(engine.url)
        answer = await router.chat(stream=True)
    assert answer.events() == [piece("x"), last, "[DONE]"]


async def test_odd_but_legal_forms_of_events_pass(start_router: Any) -> None:
    raw = (
        b": warming up\n\n",
        b"event: message\nid: 7\nretry: 1000\ndata: " + piece("A").encode() + b"\n\n",
        b"data:" + piece("B").encode() + b"\r\n\r\n",
        b'data: {"choices":\ndata: [],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n',
        b"data: [DONE]\r\r",
    )
    script = Script(
        (Script.events().steps[0], *(Send(chunk(item)) for item in raw), Send(b"0\r\n\r\n"))
    )
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        answer = await router.chat(stream=True, stream_options={"include_usage": True})
    assert answer.body == b"".join(raw)
    assert answer.ended
    assert router.router.ledger.batch().records[0].completion_tokens == 4


@pytest.mark.parametrize("reset", [False, True])
async def test_a_client_that_leaves_stops_the_engine_and_is_no_fault_of_it(
    start_router: Any, reset: Any
) -> None:
    script = Script((*Script.events(piece("x")).steps[:2], Hang()))
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            client.send(
                post("/v1/chat/completions", {"model": "demo", "messages": [], "stream": True})
            )
            await client.answer(head_only=True)
            started = asyncio.get_running_loop().time()
            if reset:
                client.reset()
        await engine.wait_until(lambda engine: engine.requests[0].peer_left)
        took = asyncio.get_running_loop().time() - started
        await router.settled()
    assert took < 1.0
    record = router.router.ledger.batch().records[0]
    assert record.status == 499
    assert router.router.selector.states()[0].failures == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_byte_stops_the_engine(
    start_router: Any, stream: Any
) -> None:
    async with ScriptedEngine(Script.raw(Hang())) as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            client.send(
                post("/v1/chat/completions", {"model": "demo", "messages": [], "stream": stream})
            )
            await engine.wait_until(lambda engine: bool(engine.requests))
        await engine.wait_until(lambda engine: engine.requests[0].peer_left)
        await router.settled()
    assert router.router.ledger.batch().records[0].status == 499


async def test_a_reader_that_does_not_read_slows_the_engine_down(
    start_router: Any, quick: Any
) -> None:
    big = chunk(event(piece("x" * 1000)))
    script = Script((Script.events().steps[0], Send(big, times=60_000), Send(b"0\r\n\r\n")))
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url, settings=quick(client_stalled=0.6))
        async with connect(router.port) as client:
            client.stop_reading()
            client.send(
                post("/v1/chat/completions", {"model": "demo", "messages": [], "stream": True})
            )
            await engine.wait_until(
                lambda engine: any(request.peer_left for request in engine.requests)
            )
            await router.settled()
    # What the kernel's socket buffers take on loopback, four of them, and little of ours.
    assert engine.bytes_written < 16 * 1024 * 1024
    assert router.router.selector.states()[0].failures == 0


async def test_a_reader_that_was_cut_leaves_nothing_in_the_kernel(
    start_router: Any, quick: Any
) -> None:
    """A reset, not an end behind megabytes that nobody will read."""
    big = chunk(event(piece("x" * 1000)))
    script = Script((Script.events().steps[0], Send(big, times=60_000), Hang()))
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url, settings=quick(client_stalled=0.6))
        async with connect(router.port) as client:
            client.stop_reading()
            client.send(
                post("/v1/chat/completions", {"model": "demo", "messages": [], "stream": True})
            )
            await engine.wait_until(
                lambda engine: any(request.peer_left for request in engine.requests)
            )
            await router.settled()
            client.read_again()
            with pytest.raises(ConnectionResetError):
                await client.reader.read()


async def test_events_of_tool_calls_and_unknown_fields_pass_unchanged(start_router: Any) -> None:
    items = [
        '{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}}],"x_vendor":{"a":[1]}}',
        '{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\\"usage\\":{}}"}}]}}]}',
        '{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}',
    ]
    async with ScriptedEngine(Script.events(*items)) as engine:
        router = await start_router(engine.url)
        answer = await router.chat(stream=True, tool_choice={"type": "x"}, x_vendor=[1, 2])
    assert answer.events() == [*items, "[DONE]"]
    assert engine.requests[0].json()["x_vendor"] == [1, 2]


async def test_a_model_asked_by_an_alias_of_the_engine_s_name_keeps_it_in_the_stream(
    start_router: Any, make_endpoint: Any
) -> None:
    chunks = [
        piece("x", model="served/name"),
        piece('say "model":"served/name"', model="served/name"),
    ]
    async with ScriptedEngine(Script.events(*chunks)) as engine:
        router = await start_router(
            endpoints=[make_endpoint(engine.url, served_name="served/name")]
        )
        answer = await router.chat(stream=True)
    assert engine.requests[0].json()["model"] == "served/name"
    events = [json.loads(item) for item in answer.events()[:-1]]
    assert [item["model"] for item in events] == ["demo", "demo"]
    assert events[1]["choices"][0]["delta"]["content"] == 'say "model":"served/name"'
