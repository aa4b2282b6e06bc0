"""A connection whose last client did not keep up serves the next one all the same."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from llmgw.clock import SystemClock
from llmgw.domain.endpoints import Endpoint
from llmgw.router.pool import AnswerHead, ConnectionPool, EngineConnection, EngineFailure
from llmgw.router.pool.connection import EngineExchange
from llmgw.router.timers import TimerWheel
from llmgw.testing.engine_script import Script, ScriptedEngine
from llmgw.testing.eventually import eventually

pytestmark = pytest.mark.anyio

PLAIN = Script.plain({"n": 1})
STREAM = Script.raw(
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)
REQUEST = b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n"


class SlowClient(EngineExchange):
    """Gets an answer, and has no room for the rest with the first piece of it."""

    def __init__(self, connection: EngineConnection) -> None:
        self.over = anyio.Event()
        self._connection = connection

    def answer_head(self, head: AnswerHead) -> None: ...

    def answer_data(self, data: bytes) -> None:
        self._connection.pause()  # until its client has read that, when this is another's

    def answer_end(self) -> None:
        self.over.set()

    def answer_whole(self, head: AnswerHead, body: bytes) -> None:
        self.over.set()

    def answer_lost(self, failure: EngineFailure, *, stale: bool) -> None:
        raise AssertionError((failure, stale))


@pytest.mark.parametrize("script", [PLAIN, STREAM], ids=["plain", "stream"])
async def test_an_answer_that_ends_while_its_client_holds_it_back_leaves_a_connection_that_reads(
    make_endpoint: Callable[..., Endpoint], script: Script
) -> None:
    async with ScriptedEngine(script) as engine:
        endpoint = make_endpoint(engine.url)
        pool = ConnectionPool(TimerWheel(SystemClock()), connect_limit_s=2.0)
        opened: list[EngineConnection] = []
        pool.open(endpoint, opened.append, lambda why: pytest.fail(why.reason))
        await eventually(lambda: opened)
        for _ in range(3):
            connection = opened.pop() if opened else pool.take(endpoint)
            assert connection is not None
            client = SlowClient(connection)
            connection.send(client, REQUEST, b"{}")
            with anyio.fail_after(2.0):
                await client.over.wait()
        assert engine.connections == 1
        await pool.aclose()
