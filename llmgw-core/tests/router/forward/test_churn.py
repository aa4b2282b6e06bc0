"""Many streams while endpoints come and go: no byte of one in another, nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from collections import Counter
from typing import Any

import pytest

from llmgw.domain.ids import Epoch
from llmgw.router.forward import Exchange
from llmgw.router.front import Connection
from llmgw.router.front.reader import RequestReader
from llmgw.router.pool import EngineConnection
from llmgw.router.timers import Deadline
from llmgw.testing.engine_script import (
    SSE_HEAD,
    Close,
    Hang,
    Received,
    Script,
    ScriptedEngine,
    Send,
    Step,
    Wait,
    chunk,
    event,
)
from llmgw.testing.eventually import eventually
from llmgw.testing.raw_http import connect, post

pytestmark = pytest.mark.anyio

EVENTS = 6
CLIENTS = 60
EACH = 3


def words_of(user: str) -> list[str]:
    return [f'{{"choices":[{{"who":"{user}","n":{number}}}]}}' for number in range(EVENTS)]


async def test_streams_never_mix_and_every_counter_returns_to_zero(
    start_router: Any, make_endpoint: Any
) -> None:
    draw = random.Random(7)

    def choose(request: Received) -> Script:
        steps: list[Step] = [Send(SSE_HEAD)]
        for word in words_of(request.json()["user"]):
            steps += [Send(chunk(event(word))), Wait(draw.random() * 0.02)]
        return Script((*steps, Send(chunk(event("[DONE]"))), Send(b"0\r\n\r\n")))

    async with ScriptedEngine(choose=choose) as one, ScriptedEngine(choose=choose) as two:
        endpoints = (make_endpoint(one.url, name="one"), make_endpoint(two.url, name="two"))
        router = await start_router(endpoints=endpoints)

        async def client(name: int) -> None:
            async with connect(router.port) as connection:
                for number in range(EACH):
                    user = f"{name}.{number}"
                    body = {"model": "demo", "stream": True, "user": user}
                    connection.send(post("/v1/chat/completions", body))
                    answer = await connection.answer()
                    assert answer.ended
                    assert answer.events() == [*words_of(user), "[DONE]"]

        async def churn() -> None:
            for epoch in itertools.count(2):
                some = draw.choice((endpoints, endpoints[:1], endpoints[1:]))
                router.router.publish_endpoints(some, Epoch(epoch))
                await asyncio.sleep(0.02)

        churning = asyncio.ensure_future(churn())
        await asyncio.gather(*(client(name) for name in range(CLIENTS)))
        churning.cancel()
        await eventually(lambda: not router.in_flight and not router.router.metrics.connections)
        assert not router.router.admission.queued()
    records = router.router.ledger.batch().records
    assert [record.status for record in records] == [200] * (CLIENTS * EACH)


async def test_what_ended_is_gone_without_the_collector(start_router: Any) -> None:
    """Left to it, the dead of a minute would be a tenth of the memory, and pin the rest."""
    events = Script.events('{"choices":[]}')
    plain = Script.plain({"choices": []})
    breaks = Script.events('{"choices":[]}', end=[Close(reset=True)])
    refuses = Script.plain({"error": {"message": "no"}}, status=400)
    gc.collect()
    gc.disable()
    try:
        async with ScriptedEngine() as engine:
            router = await start_router(engine.url)
            for script in (events, plain, breaks, refuses, events):
                engine.script = script
                async with connect(router.port) as connection:
                    body = {"model": "demo", "stream": script is not plain}
                    connection.send(post("/v1/chat/completions", body))
                    await connection.answer(head_only=script is breaks)
            engine.script = Script.raw(Hang())
            async with connect(router.port) as connection:
                connection.send(post("/v1/chat/completions", {"model": "demo"}))
                await engine.wait_until(lambda engine: len(engine.requests) == 6)
        await router.settled()
        await eventually(lambda: not router.router.front.count)
        kinds = (Exchange, EngineConnection, Connection, RequestReader, Deadline)
        left = Counter(type(item).__name__ for item in gc.get_objects() if isinstance(item, kinds))
    finally:
        gc.enable()
    assert left == {"Deadline": 1}, "of the pool"
