"""A listener serves, lets requests end when it is stopped, and cuts those that do not."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from llmgw.config.addresses import Address
from llmgw.server.listeners import address_of, listen
from llmgw.server.serving import HttpListener

pytestmark = pytest.mark.anyio

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Slow:
    """An application that answers in two pieces, the second when it is allowed to."""

    def __init__(self) -> None:
        self.may_end = anyio.Event()

    async def __call__(self, scope: object, receive: object, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        await self.may_end.wait()
        await send({"type": "http.response.body", "body": b"last"})


@asynccontextmanager
async def serving(app: Slow, *, limit_s: float = 5.0) -> AsyncIterator[tuple[HttpListener, str]]:
    with listen(Address("127.0.0.1", 0)) as listener:
        url = f"http://{address_of(listener)}"
        one = HttpListener(app, listener, drain_limit_s=limit_s)
        async with anyio.create_task_group() as tasks:
            await tasks.start(one.run)
            yield one, url
            one.stop()


async def test_a_stream_under_way_may_end_after_the_stop_and_no_new_one_is_taken() -> None:
    app = Slow()
    async with (
        httpx.AsyncClient(trust_env=False) as client,
        serving(app) as (one, url),
        client.stream("GET", url) as answer,
    ):
        pieces = answer.aiter_bytes()
        assert await anext(pieces) == b"first "
        one.stop()
        with anyio.fail_after(5):
            while True:
                try:
                    await (
                        await anyio.connect_tcp("127.0.0.1", int(url.rpartition(":")[2]))
                    ).aclose()
                except OSError:
                    break
        app.may_end.set()
        assert [piece async for piece in pieces] == [b"last"]


async def test_a_stream_that_does_not_end_is_cut_at_the_limit() -> None:
    app = Slow()
    async with (
        httpx.AsyncClient(trust_env=False) as client,
        serving(app, limit_s=-0.9) as (one, url),
        client.stream("GET", url) as answer,
    ):
        pieces = answer.aiter_bytes()
        await anext(pieces)
        one.stop()
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(pieces)


async def test_signals_keep_their_owner() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with serving(Slow()):
        assert signal.getsignal(signal.SIGTERM) is before
