"""Streams, and how they end."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import anyio
import pytest

from llmgw.testing.engine_script import Close, Hang, Script, Send, Wait, chunk, event
from llmgw.testing.raw_http import connect, post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
TOKEN = '{"choices": [{"index": 0, "delta": {"content": "x"}}]}'


async def test_c008_c012_c013_c022_c023_events_pass_as_they_are(
    listeners: Any, serving: str
) -> None:
    raw = 'data:{"choices":[],"x":"naïve 北京 🙂"}\r\n\r\n: hello\n\ndata: [DONE]\n\n'.encode()
    pieces = [chunk(raw[start : start + 7]) for start in range(0, len(raw), 7)]
    listeners.engine.script = Script.raw(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nset-cookie: a=b\r\n"
        b"connection: x-inner\r\nx-inner: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        *pieces,
        b"0\r\n\r\n",
    )
    answer = await listeners.chat(serving, stream=True)
    text = answer.body.decode()
    assert "naïve 北京 🙂" in text
    assert text.rstrip().endswith("[DONE]")
    assert answer.header("x-accel-buffering") == "no"
    assert answer.header("set-cookie") is answer.header("x-inner") is None
    (request,) = listeners.engine.requests
    assert request.header("authorization") is None


@pytest.mark.parametrize("end", [Close(), Close(reset=True), Hang()])
async def test_c014_c015_an_engine_that_dies_or_falls_silent_is_an_error_event(
    listeners: Any, serving: str, end: Any
) -> None:
    token = '{"choices": [{"index": 0, "delta": {"content": "x"}}]}'
    listeners.engine.script = Script.events(token, end=[Send(b'10\r\ndata: {"ch'), end])
    answer = await listeners.chat(serving, stream=True)
    first, last = answer.events()
    assert json.loads(first)["choices"]
    assert json.loads(last)["error"]["code"]


async def test_c016_an_error_as_first_event_is_tried_elsewhere_or_becomes_a_status(
    listeners: Any, serving: str
) -> None:
    broken = Script.events('{"error": {"message": "KV cache exhausted", "code": 500}}')
    listeners.other.script, listeners.engine.script = broken, Script.events(TOKEN)
    answer = await listeners.chat(serving, model="pair", stream=True)
    assert (answer.status, answer.header("x-llmgw-endpoint")) == (200, "e3")
    assert len(listeners.other.requests) == 1
    alone = await listeners.chat(serving, model="small", stream=True)
    assert (alone.status, alone.error()["message"]) == (500, "KV cache exhausted")


@pytest.mark.parametrize(
    ("options", "shows"),
    [
        ({}, False),
        ({"stream_options": None}, False),
        ({"stream_options": {"include_usage": False}}, False),
        ({"stream_options": {"include_usage": True}}, True),
    ],
)
async def test_c017_usage_is_shown_to_those_who_asked_for_it(
    listeners: Any, serving: str, options: dict[str, Any], shows: bool
) -> None:
    usage = '{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}'
    listeners.engine.script = Script.events(TOKEN, usage)
    answer = await listeners.chat(serving, stream=True, **options)
    assert answer.events() == [TOKEN, *([usage] if shows else []), "[DONE]"]


async def test_c018_c019_a_client_that_leaves_stops_the_engine(
    listeners: Any, serving: str
) -> None:
    engine = listeners.engine
    for script in (Script.raw(Hang()), Script.events('{"choices": []}', end=[Hang()])):
        engine.script = script
        engine.requests.clear()
        async with connect(listeners.ports[serving]) as client:
            body = {"model": "demo", "messages": [], "stream": True}
            client.send(post(CHAT, body, headers=listeners.auth))
            await engine.wait_until(lambda engine: bool(engine.requests))
        with anyio.fail_after(2):
            await engine.wait_until(lambda engine: engine.requests[0].peer_left)


async def test_c020_a_reader_that_does_not_read_slows_the_engine_down_and_is_cut(
    listeners: Any, serving: str
) -> None:
    engine = listeners.engine
    big = chunk(event(json.dumps({"choices": [], "x": "x" * 4000})))
    engine.script = Script((Script.events().steps[0], Send(big, times=15_000), Hang()))
    async with connect(listeners.ports[serving]) as client:
        client.stop_reading()
        body = {"model": "demo", "messages": [], "stream": True}
        client.send(post(CHAT, body, headers=listeners.auth))
        await engine.wait_until(lambda engine: any(one.peer_left for one in engine.requests))
    assert engine.bytes_written < 16 * 1024 * 1024
    engine.script = Script.plain({"choices": []})
    assert (await listeners.chat(serving)).status == 200


async def test_c021_a_long_silence_before_a_plain_answer_is_normal(
    listeners: Any, serving: str
) -> None:
    """Longer than a stream may wait for its first byte, or between two chunks."""
    listeners.engine.script = Script((Wait(1.5), *Script.plain({"choices": []}).steps))
    assert (await listeners.chat(serving)).status == 200


async def test_c021_the_limit_of_a_stream_s_first_byte_is_named(
    listeners: Any, serving: str
) -> None:
    listeners.engine.script = Script.raw(Hang())
    answer = await listeners.chat(serving, stream=True)
    assert (answer.status, answer.error()["code"]) == (504, "first_byte_timeout")


async def test_c022_each_event_goes_out_at_once(listeners: Any, serving: str) -> None:
    steps = [step for _ in range(4) for step in (Send(chunk(event(TOKEN))), Wait(0.1))]
    listeners.engine.script = Script.events(end=[*steps, Send(b"0\r\n\r\n")])
    async with connect(listeners.ports[serving]) as client:
        body = {"model": "demo", "messages": [], "stream": True}
        client.send(post(CHAT, body, headers=listeners.auth))
        answer = await client.answer(head_only=True)
        assert str(answer.header("content-type")).startswith("text/event-stream")
        assert answer.header("cache-control") == "no-cache"
        assert answer.header("content-length") is None
        came: list[float] = []
        for _ in range(4):
            await client.reader.readuntil(b"\n\n")
            came.append(asyncio.get_running_loop().time())
    gaps = [later - earlier for earlier, later in itertools.pairwise(came)]
    assert min(gaps) > 0.05, "they were held back and came together"


async def test_c023_tool_calls_and_unknown_fields_pass_unchanged(
    listeners: Any, serving: str
) -> None:
    items = [
        '{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a"}]}}],"x_vendor":{"a":[1]}}',
        '{"choices":[{"delta":{"tool_calls":[{"index":1,"arguments":"{\\"usage\\":{}}"}]}}]}',
        '{"choices":[{"delta":{"reasoning_content":"hm"}}]}',
    ]
    listeners.engine.script = Script.events(*items)
    answer = await listeners.chat(serving, stream=True, tool_choice={"type": "x"}, x_vendor=[1])
    assert answer.events() == [*items, "[DONE]"]
    asked = listeners.engine.requests[0].json()
    assert (asked["tool_choice"], asked["x_vendor"]) == ({"type": "x"}, [1])
