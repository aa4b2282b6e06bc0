"""Errors and second tries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmgw.testing.engine_script import Close, Hang, Script, Wait
from llmgw.testing.raw_http import connect, get, post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
OK = Script.plain({"choices": []})


async def test_c024_a_clients_mistake_is_passed_on_and_harms_nobody(
    listeners: Any, serving: str
) -> None:
    listeners.engine.script = Script.plain({"error": {"message": "too long"}}, status=400)
    for _ in range(10):
        answer = await listeners.chat(serving)
        assert answer.status == 400
        assert answer.error()["message"] == "too long"
    assert len(listeners.engine.requests) == 10
    listeners.engine.script = Script.plain({"choices": []})
    assert (await listeners.chat(serving)).status == 200


async def test_c025_one_hung_engine_does_not_hold_the_rest(listeners: Any, serving: str) -> None:
    listeners.other.script = Script.raw(Hang())
    body = {"model": "small", "messages": []}
    clients = [await asyncio.open_connection("127.0.0.1", listeners.ports[serving]) for _ in "123"]
    for _, writer in clients:  # one is asked, two wait
        writer.write(post(CHAT, body, headers=listeners.auth))
    await listeners.other.wait_until(lambda engine: bool(engine.requests))
    over = await listeners.ask(serving, post(CHAT, body, headers=listeners.auth))
    assert (over.status, over.error()["code"]) == (429, "saturated")
    assert int(str(over.header("retry-after"))) >= 1
    assert (await listeners.chat(serving)).status == 200
    assert (await listeners.ask(serving, get("/healthz"))).status == 200
    for _, writer in clients:
        writer.close()
    await listeners.other.wait_until(lambda engine: engine.requests[0].peer_left)
    listeners.other.script = OK
    assert (await listeners.chat(serving, model="small")).status == 200


async def test_c026_a_kept_connection_that_just_died_costs_the_client_nothing(
    listeners: Any, serving: str
) -> None:
    def choose(request: Any) -> Script:
        return OK if request.number_on_connection == 1 else Script.raw(Close())

    listeners.engine.choose = choose
    answers = [await listeners.chat(serving) for _ in range(20)]
    assert {answer.status for answer in answers} == {200}
    assert {answer.header("x-llmgw-attempts") for answer in answers} == {"1"}


@pytest.mark.parametrize(
    ("first", "asked"),
    [
        (Script.plain({"error": {"message": "full"}}, status=503), 2),
        (Script.raw(Close(reset=True)), 2),
        (Script.plain({"detail": "no"}, status=500), 1),
        (Script.events('{"choices": []}', end=[Close(reset=True)]), 1),
    ],
    ids=["busy", "reset", "500", "reset after a token"],
)
async def test_c027_no_question_is_asked_twice_that_an_engine_has_begun_to_answer(
    listeners: Any, serving: str, first: Script, asked: int
) -> None:
    # Over a kept connection a reset would be no answer at all, and asked again (C026).
    listeners.other.script = Script.plain({"choices": []}, headers=[("connection", "close")])
    await listeners.chat(serving, model="pair")
    listeners.other.requests.clear()
    listeners.other.script = first
    listeners.engine.script = Script.events('{"choices": []}')
    await listeners.chat(serving, model="pair", stream=True)
    assert len(listeners.other.requests) + len(listeners.engine.requests) == asked


async def test_c028_full_is_said_with_the_time_to_come_back(listeners: Any, serving: str) -> None:
    slow = Script((Wait(0.3), *OK.steps))
    listeners.other.script = slow
    answers = await asyncio.gather(*(listeners.chat(serving, model="small") for _ in range(6)))
    statuses = sorted(answer.status for answer in answers)
    assert statuses == [200] * 3 + [429] * 3, "one runs and two wait"
    assert all(answer.header("retry-after") for answer in answers if answer.status == 429)
    busy = Script.plain({"error": {"message": "full"}}, status=429, headers=[("retry-after", "7")])
    listeners.other.script = busy
    answer = await listeners.chat(serving, model="small")
    assert (answer.status, answer.header("retry-after")) == (429, "7")
    listeners.other.script = OK
    assert (await listeners.chat(serving, model="small")).status == 200


async def test_c029_a_slot_is_given_back_however_a_request_ends(
    listeners: Any, serving: str
) -> None:
    """`small` has one slot: were it lost, the next request would wait."""
    other = listeners.other
    body = {"model": "small", "messages": [], "stream": True}
    for script in (
        Script.raw(Close(reset=True)),
        Script.plain({"error": {"message": "bad"}}, status=400),
        Script.plain({"detail": "no"}, status=500),
        Script.events('{"choices": []}', end=[Close(reset=True)]),
        Script.events('{"choices": []}', end=[Hang()]),
    ):
        other.script = script
        await listeners.chat(serving, model="small", stream=True)
        other.script = Script.raw(Hang())
        other.requests.clear()
        async with connect(listeners.ports[serving]) as client:
            client.send(post(CHAT, body, headers=listeners.auth))
            await other.wait_until(lambda engine: bool(engine.requests))
        other.script = OK
        async with asyncio.timeout(2):
            assert (await listeners.chat(serving, model="small")).status == 200
