"""What failed is gone without the collector, as what went well is (`forward/test_churn.py`).

Full collections are rare and set aside what they find alive (`server.memory`): what is part of a
cycle then stays for good when its time has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from llmgw.clock import SystemClock
from llmgw.config.server import Deadlines, RouterSettings
from llmgw.domain.keys import ApiKey, KeyLimits
from llmgw.errors import RequestError
from llmgw.router.forward import Envelope, Exchange
from llmgw.router.forward.deaths import Examination
from llmgw.router.front import Connection
from llmgw.router.ingress import Request
from llmgw.router.pool import ConnectionPool, EngineConnection, LookFailed, Looks, Opening
from llmgw.router.timers import TimerWheel
from llmgw.testing.engine_script import Close, Die, Script, ScriptedEngine
from llmgw.testing.eventually import eventually
from llmgw.testing.raw_http import connect, post
from llmgw.testing.site import free_port

pytestmark = pytest.mark.anyio

Left = Callable[[], Counter[str]]

KINDS = (
    *(Exchange, Envelope, Examination, Connection, Request, RequestError),
    *(EngineConnection, Opening, LookFailed),
)
CHAT = "/v1/chat/completions"
KEY = "llmgw_k_secret"


def there_are() -> Counter[str]:
    return Counter(type(item).__name__ for item in gc.get_objects() if isinstance(item, KINDS))


@pytest.fixture
def left() -> Iterator[Left]:
    """Return a function that returns what is left of a test that the collector has no part in."""
    gc.collect()
    before = there_are()  # of other tests, which may hold on to some
    gc.disable()
    yield lambda: there_are() - before
    gc.enable()


def limited_key() -> ApiKey:
    """Return a key that may ask once a minute."""
    secret_hash = hashlib.sha256(b"secret").hexdigest()
    return ApiKey(id="k", secret_hash=secret_hash, limits=KeyLimits(requests_per_minute=1))


async def test_nothing_is_left_of_requests_that_were_refused(left: Left, start_router: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url, keys_open=False)
        router.router.keys.replace([limited_key()])
        seen: list[int] = []
        for body, key in (
            ({"model": "demo"}, "wrong"),
            ({"model": "nobody"}, KEY),
            (b"{", KEY),
            ({"model": "demo"}, KEY),
            ({"model": "demo"}, KEY),
        ):
            headers = {"authorization": f"Bearer {key}"}
            answer = await router.ask(post(CHAT, body, headers=headers))
            seen.append(answer.status)
        assert seen == [401, 404, 400, 200, 429]
        await eventually(lambda: not router.router.front.count)
        for endpoint in list(router.router.pool._idle):
            router.router.pool.forget(endpoint)
        await eventually(lambda: not left())


@pytest.mark.parametrize("end", [Die(), Close(reset=True)], ids=["died", "hung up"])
@pytest.mark.parametrize("stream", [True, False])
async def test_nothing_is_left_of_requests_whose_engine_went(
    left: Left, start_router: Any, end: Any, stream: bool
) -> None:
    settings = RouterSettings(deadlines=Deadlines(queue=0.1, connect=0.5))
    async with ScriptedEngine(Script.raw(end)) as engine:
        router = await start_router(engine.url, settings=settings)
        assert (await router.chat(stream=stream)).status == 502
    await router.settled()
    await eventually(lambda: not router.router.front.count)
    await eventually(lambda: not left())


@pytest.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(TimerWheel(SystemClock()), connect_limit_s=5.0)
    yield made
    await made.aclose()


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_nothing_is_left_of_a_connection_that_nobody_waits_for_any_more(
    left: Left, pool: ConnectionPool, make_endpoint: Any, turns: int
) -> None:
    async with ScriptedEngine() as engine:
        opening = pool.open(make_endpoint(engine.url), lambda _: None, lambda _: None)
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        del opening
        await eventually(lambda: not left())


async def test_nothing_is_left_of_a_look_that_failed(
    left: Left, pool: ConnectionPool, make_endpoint: Any
) -> None:
    endpoint = make_endpoint(f"http://127.0.0.1:{free_port()}")
    with contextlib.suppress(LookFailed):
        await Looks(pool).get(endpoint, "/health", limit_s=5.0, most=10, fresh=True)
    await eventually(lambda: not left())


async def test_nothing_is_left_of_a_client_that_went_while_its_engine_was_looked_for(
    left: Left, start_router: Any
) -> None:
    router = await start_router(f"http://127.0.0.1:{free_port()}")
    async with connect(router.port) as client:
        client.send(post(CHAT, {"model": "demo", "stream": True}))
        await eventually(lambda: router.router.metrics.totals().failed)
        client.reset()
    await router.settled()
    await eventually(lambda: not router.router.front.count)
    await eventually(lambda: not left())
