"""Requests that engines die of, and those that only were there when it happened."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import Epoch
from llmgw.testing.engine_script import Close, Die, Hang, Received, Script, ScriptedEngine, Wait
from llmgw.testing.eventually import eventually

pytestmark = pytest.mark.anyio

OK = Script.plain({"model": "demo", "choices": []})


def dies_of_poison(request: Received) -> Script:
    return Script.raw(Wait(0.2), Die()) if b"poison" in request.body else Script.raw(Hang())


async def test_a_connection_that_breaks_is_no_death_while_the_engine_is_there(
    start_router: Any,
) -> None:
    hang_up = Script.raw(Close(reset=True))
    async with ScriptedEngine(hang_up) as one, ScriptedEngine(hang_up) as two:
        router = await start_router(one.url, two.url)
        answers = [await router.chat() for _ in range(3)]
    assert {answer.error()["code"] for answer in answers} == {"engine_lost"}
    assert router.router.selector.quarantine.is_empty


async def test_an_engine_that_is_there_in_another_incarnation_has_died(
    start_router: Any, make_endpoint: Callable[..., Endpoint]
) -> None:
    async with ScriptedEngine(Script.raw(Wait(0.2), Close(reset=True))) as engine:
        router = await start_router(engine.url)
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(router.chat())
            await engine.wait_until(lambda engine: len(engine.requests) == 1)
            again = make_endpoint(engine.url, incarnation="2")
            router.router.publish_endpoints((again,), Epoch(2))
        assert asked.result().status == 502
    assert not router.router.selector.quarantine.is_empty


async def test_bystanders_of_a_death_are_served_elsewhere_and_not_refused_later(
    start_router: Any, make_endpoint: Callable[..., Endpoint]
) -> None:
    async with ScriptedEngine(OK) as other, ScriptedEngine() as dying:
        dying.choose = dies_of_poison
        router = await start_router(dying.url)
        async with asyncio.TaskGroup() as tasks:
            bystanders = [tasks.create_task(router.chat(user=f"u{n}")) for n in range(2)]
            await dying.wait_until(lambda engine: len(engine.requests) == 2)
            tasks.create_task(router.chat(poison=True))
            await dying.wait_until(lambda engine: len(engine.requests) == 3)
            two = make_endpoint(dying.url), make_endpoint(other.url, name="e2")
            router.router.publish_endpoints(two, Epoch(2))
        answers = [task.result() for task in bystanders]
        again = [await router.chat(user=f"u{n}") for n in range(2)]
    assert {answer.status for answer in (*answers, *again)} == {200}


async def test_copies_of_a_poison_request_kill_two_engines_and_no_third(
    start_router: Any, make_endpoint: Callable[..., Endpoint]
) -> None:
    """All of them are on one engine when it dies, and there would be one for each to go to."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine()) for _ in range(5)]
        for engine in engines:
            engine.choose = dies_of_poison
        router = await start_router(engines[0].url)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(router.chat(poison=True)) for _ in range(3)]
            await engines[0].wait_until(lambda engine: len(engine.requests) == 3)
            published = tuple(
                make_endpoint(engine.url, name=f"e{number}")
                for number, engine in enumerate(engines, 1)
            )
            router.router.publish_endpoints(published, Epoch(2))
        answers = [task.result() for task in asked]
        again = await router.chat(poison=True)
        assert sum(bool(engine.requests) for engine in engines) == 2
    for answer in (*answers, again):
        assert (answer.status, answer.error()["code"]) == (500, "request_quarantined")
    await router.settled()


async def test_copies_that_run_elsewhere_are_ended_at_the_second_death(start_router: Any) -> None:
    def dies_after(seconds: float) -> Callable[[Received], Script]:
        return lambda _: Script.events('{"choices":[]}', end=[Wait(seconds), Die()])

    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine()) for _ in range(4)]
        for engine, seconds in zip(engines, (0.2, 0.4, 15.0, 15.0), strict=True):
            engine.choose = dies_after(seconds)
        router = await start_router(*(engine.url for engine in engines))
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(router.chat(stream=True)) for _ in range(4)]
        for engine in engines[2:]:
            await engine.wait_until(lambda engine: engine.requests[0].peer_left)
    errors = [json.loads(task.result().events()[-1])["error"]["code"] for task in asked]
    assert sorted(errors) == ["engine_lost", "engine_lost", *["request_quarantined"] * 2]
    await router.settled()


async def test_copies_that_wait_in_line_are_let_go_to_no_engine_any_more(
    start_router: Any, make_endpoint: Callable[..., Endpoint]
) -> None:
    async with ScriptedEngine() as one, ScriptedEngine() as two:
        for engine in (one, two):
            engine.choose = dies_of_poison
        limited = [
            make_endpoint(engine.url, name=name, max_inflight=1)
            for engine, name in ((one, "e1"), (two, "e2"))
        ]
        router = await start_router(endpoints=limited)
        answers = await asyncio.gather(*(router.chat(poison=True) for _ in range(4)))
    codes = {"engine_lost", "request_suspected", "request_quarantined"}
    assert {answer.error()["code"] for answer in answers} <= codes
    assert len(one.requests) == len(two.requests) == 1


async def test_a_death_in_the_middle_of_a_stream_counts_though_nothing_is_retried(
    start_router: Any,
) -> None:
    begun = Script.events('{"choices":[{"delta":{}}]}', end=[Die()])
    async with ScriptedEngine(begun) as engine:
        router = await start_router(engine.url)
        await router.chat(stream=True)
        await eventually(lambda: not router.router.selector.quarantine.is_empty)
        await router.settled()


@pytest.mark.parametrize("published", [(), ({"draining": True},)])
async def test_an_engine_that_was_told_to_go_has_not_died_of_its_requests(
    start_router: Any, make_endpoint: Callable[..., Endpoint], published: tuple[Any, ...]
) -> None:
    """At the end of its drain limit a replica is stopped under the streams that are left."""
    async with ScriptedEngine(Script.raw(Wait(0.2), Die())) as engine:
        router = await start_router(engine.url)
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(router.chat())
            await engine.wait_until(lambda engine: len(engine.requests) == 1)
            left = tuple(make_endpoint(engine.url, **given) for given in published)
            router.router.publish_endpoints(left, Epoch(2))
        assert asked.result().status == 502
    assert router.router.selector.quarantine.is_empty
