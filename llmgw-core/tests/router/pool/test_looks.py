"""A small GET: what it sends, what it makes of what comes, and where it stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from llmgw.clock import SystemClock
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.secret import Secret
from llmgw.router.pool import ConnectionPool, LookFailed, Looks, Page
from llmgw.router.timers import TimerWheel
from llmgw.testing.clock import FakeClock
from llmgw.testing.engine_script import Close, Hang, Script, ScriptedEngine

pytestmark = pytest.mark.anyio

MakeEndpoint = Callable[..., Endpoint]


@asynccontextmanager
async def looks() -> AsyncIterator[Looks]:
    wheel = TimerWheel(SystemClock())
    pool = ConnectionPool(wheel, connect_limit_s=2.0)
    async with anyio.create_task_group() as tasks:
        await tasks.start(wheel.run)
        try:
            yield Looks(pool)
        finally:
            await pool.aclose()
            tasks.cancel_scope.cancel()


async def get(at: Looks, endpoint: Endpoint, *, limit_s: float = 5.0, most: int = 1000) -> Page:
    return await at.get(endpoint, "/health", limit_s=limit_s, most=most)


async def test_engines_are_asked_with_their_key_and_headers_below_their_path(
    make_endpoint: MakeEndpoint,
) -> None:
    async with ScriptedEngine(Script.plain(b"fine")) as engine, looks() as at:
        endpoint = make_endpoint(
            f"{engine.url}/base", credential=Secret("k3y"), headers={"X-Team": "one"}
        )
        page = await get(at, endpoint)
        assert (page.status, page.body, page.is_good) == (200, b"fine", True)
        (request,) = engine.requests
    assert request.line == "GET /base/health HTTP/1.1"
    assert request.header("authorization") == "Bearer k3y"
    assert request.header("x-team") == "one"
    assert request.header("accept-encoding") == "identity"


async def test_a_connection_is_used_again_and_a_closed_one_is_no_failure(
    make_endpoint: MakeEndpoint,
) -> None:
    async with ScriptedEngine(Script.plain(b"fine")) as engine, looks() as at:
        endpoint = make_endpoint(engine.url)
        for _ in range(3):
            await get(at, endpoint)
        assert engine.connections == 1
        engine.choose = lambda request: (
            Script.raw(Close()) if request.number_on_connection > 1 else Script.plain(b"new")
        )
        assert (await get(at, endpoint)).body == b"new"
        assert engine.connections == 2


async def test_a_fresh_look_leaves_the_connections_of_requests_alone(
    make_endpoint: MakeEndpoint,
) -> None:
    async with ScriptedEngine(Script.plain(b"fine")) as engine, looks() as at:
        endpoint = make_endpoint(engine.url)
        await get(at, endpoint)
        for _ in range(2):
            await at.get(endpoint, "/health", limit_s=5.0, most=1000, fresh=True)
        assert engine.connections == 3
        assert engine.requests[-1].header("connection") == "close"
        await engine.wait_until(lambda engine: engine.open_connections <= 1)
        await get(at, endpoint)
        assert engine.connections == 3


async def test_a_status_is_an_answer(make_endpoint: MakeEndpoint) -> None:
    async with ScriptedEngine(Script.plain(b"", status=503)) as engine, looks() as at:
        page = await get(at, make_endpoint(engine.url))
    assert (page.status, page.is_good) == (503, False)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script.raw(Hang()), "no answer within 0.1 s"),
        (Script.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", Hang()), "no answer"),
        (Script.raw(b"SSH-2.0-OpenSSH\r\n\r\n", Hang()), "garbled"),
        (Script.raw(Close(reset=True)), "the connection ended: reset"),
        (Script.plain(b"x" * 5000), "larger than 1000 bytes"),
    ],
)
async def test_what_is_no_answer_fails_in_time_and_leaves_no_connection(
    make_endpoint: MakeEndpoint, script: Script, said: str
) -> None:
    async with ScriptedEngine(script) as engine, looks() as at:
        with pytest.raises(LookFailed, match=said) as caught:
            await get(at, make_endpoint(engine.url), limit_s=0.1)
        assert not caught.value.is_away
        await engine.wait_until(lambda engine: engine.open_connections == 0)


async def test_while_this_process_stands_still_no_look_runs_out_of_time(
    make_endpoint: MakeEndpoint,
) -> None:
    clock = FakeClock()
    wheel = TimerWheel(clock)
    pool = ConnectionPool(wheel, connect_limit_s=2.0)
    async with ScriptedEngine(Script.raw(Hang())) as engine:
        endpoint = make_endpoint(engine.url)

        async def look() -> None:
            with pytest.raises(LookFailed, match="no answer within 2 s"):
                await get(Looks(pool), endpoint, limit_s=2.0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            await engine.wait_until(lambda engine: len(engine.requests) == 1)
            await clock.advance(60.0)
            wheel.turn()
            await anyio.wait_all_tasks_blocked()
            assert engine.open_connections == 1
            for _ in range(8):
                await clock.advance(0.25)
                wheel.turn()
        await pool.aclose()


async def test_nobody_listening_is_told_from_silence(make_endpoint: MakeEndpoint) -> None:
    async with ScriptedEngine() as engine:
        gone = make_endpoint(engine.url)
    async with looks() as at:
        with pytest.raises(LookFailed) as caught:
            await get(at, gone)
    assert (caught.value.is_away, caught.value.is_refused) == (True, True)


async def test_the_environments_proxy_is_not_used(
    monkeypatch: pytest.MonkeyPatch, make_endpoint: MakeEndpoint
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with ScriptedEngine(Script.plain(b"fine")) as engine, looks() as at:
        assert (await get(at, make_endpoint(engine.url))).is_good
