"""How long connections wait for the next request."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.domain.endpoints import Endpoint
from llmgw.router.pool import (
    AnswerHead,
    ConnectionPool,
    EngineConnection,
    EngineExchange,
    EngineFailure,
)
from llmgw.router.pool.pool import IDLE_FEW, SURPLUS_FOR_S, SWEEP_EVERY_S
from llmgw.router.timers import TICK_S, TimerWheel
from llmgw.testing.clock import FakeClock
from llmgw.testing.engine_script import ScriptedEngine
from llmgw.testing.eventually import eventually

pytestmark = pytest.mark.anyio

KEEP_ALIVE_S = 5.0
"""Of uvicorn and cpp-httplib, which most engines have."""


class Asked(EngineExchange):
    """Waits for its answer."""

    def __init__(self) -> None:
        self.is_over = False

    def answer_head(self, head: AnswerHead) -> None: ...

    def answer_data(self, data: bytes) -> None: ...

    def answer_end(self) -> None:
        self.is_over = True

    def answer_lost(self, failure: EngineFailure, *, stale: bool) -> None:
        raise AssertionError((failure, stale))


async def connection_to(pool: ConnectionPool, endpoint: Endpoint) -> EngineConnection:
    """Return an idle connection, or else a new one."""
    if (idle := pool.take(endpoint)) is not None:
        return idle
    opened: list[EngineConnection] = []
    pool.open(endpoint, opened.append, lambda why: pytest.fail(why.reason))
    await eventually(lambda: opened)
    return opened[0]


async def ask(connection: EngineConnection) -> None:
    asked = Asked()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ncontent-length: 0\r\n\r\n"
    connection.send(asked, head, b"")
    await eventually(lambda: asked.is_over)


async def advance(clock: FakeClock, wheel: TimerWheel, seconds: float) -> None:
    for _ in range(int(seconds / TICK_S)):
        await clock.advance(TICK_S)
        wheel.turn()


async def test_a_connection_is_closed_before_its_engine_closes_it_and_not_sooner_than_needed(
    make_endpoint: Any,
) -> None:
    clock = FakeClock()
    wheel = TimerWheel(clock)
    pool = ConnectionPool(wheel, connect_limit_s=5.0)
    async with ScriptedEngine() as engine:
        endpoint = make_endpoint(engine.url)
        for wait_s in (KEEP_ALIVE_S / 2, KEEP_ALIVE_S):
            await ask(await connection_to(pool, endpoint))
            await advance(clock, wheel, wait_s)
        assert engine.connections == 1, "in use for as long as the engine keeps it"
        assert pool.idle == 0
        await eventually(lambda: not engine.open_connections)
        await pool.aclose()


async def test_of_a_crowd_that_has_gone_elsewhere_few_connections_stay(make_endpoint: Any) -> None:
    clock = FakeClock()
    wheel = TimerWheel(clock)
    pool = ConnectionPool(wheel, connect_limit_s=5.0)
    async with ScriptedEngine() as engine:
        endpoint = make_endpoint(engine.url)
        crowd = [await connection_to(pool, endpoint) for _ in range(20)]
        for connection in crowd:
            await ask(connection)
        await advance(clock, wheel, SURPLUS_FOR_S / 2)
        assert pool.idle == 20, "another request may follow at once"
        await advance(clock, wheel, SURPLUS_FOR_S + SWEEP_EVERY_S)
        assert pool.idle == IDLE_FEW
        assert pool.take(endpoint) is crowd[-1]
        await eventually(lambda: engine.open_connections == IDLE_FEW)
        await pool.aclose()
