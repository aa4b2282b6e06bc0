"""Many streams while endpoints come and go: no byte of one in another, nothing left behind."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from llmgw.domain.ids import Epoch
from llmgw.testing.engine_script import (
    SSE_HEAD,
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
