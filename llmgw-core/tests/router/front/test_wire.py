"""HTTP/1.1 as clients, careless ones and hostile ones send it."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

import pytest

from llmgw.config.server import Deadlines, RouterSettings
from llmgw.testing.engine_script import Script, ScriptedEngine
from llmgw.testing.eventually import eventually
from llmgw.testing.raw_http import connect, get, post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
BODY = b'{"model": "demo", "messages": [{"role": "user", "content": "say hello"}]}'
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: test\r\nX-Smuggled: yes\r\n\r\n"


def head(*lines: str) -> bytes:
    return "\r\n".join(("POST /v1/chat/completions HTTP/1.1", *lines, "", "")).encode()


AMBIGUOUS = {
    "both a length and chunks": head("Host: t", "Content-Length: 5", "Transfer-Encoding: chunked")
    + b"0\r\n\r\n"
    + SMUGGLED,
    "two lengths": head("Host: t", "Content-Length: 73", "Content-Length: 0") + BODY + SMUGGLED,
    "a length with a sign": head("Host: t", "Content-Length: +73") + BODY,
    "a folded header": head("Host: t", "X-A: 1", " 2", "Content-Length: 73") + BODY,
    "bare line feeds": head("Host: t", "Content-Length: 73").replace(b"\r\n", b"\n") + BODY,
    "a space before the colon": head("Host: t", "Content-Length : 73") + BODY,
    "an unknown transfer coding": head("Host: t", "Transfer-Encoding: gzip, chunked, x") + BODY,
    "a chunk size that is none": head("Host: t", "Transfer-Encoding: chunked") + b"zz\r\n" + BODY,
    "a tunnel": b"CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n\r\n" + SMUGGLED,
    "a tunnel that offers more": b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nConnection: Upgrade\r\n"
    b"Upgrade: h2c\r\nContent-Length: 0\r\n\r\n",
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10,
}


@pytest.mark.parametrize("request_bytes", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_what_two_parsers_could_read_differently_is_refused_and_the_connection_closed(
    start_router: Any, request_bytes: Any
) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            client.send(request_bytes)
            answer = await client.answer()
            assert answer.status == 400
            assert answer.error()["code"] == "invalid_http"
            assert await client.is_closed()
    assert not engine.requests


async def test_a_chunked_request_reaches_the_engine_with_a_length(start_router: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        answer = await router.ask(post(CHAT, BODY, chunked=True))
    assert answer.status == 200
    assert engine.requests[0].body == BODY
    assert engine.requests[0].header("transfer-encoding") is None
    assert engine.requests[0].header("content-length") == str(len(BODY))


async def test_trailers_never_become_headers(start_router: Any) -> None:
    request = head("Host: t", "Transfer-Encoding: chunked") + (
        b"%x\r\n%b\r\n0\r\nX-Request-Id: trailer\r\nAuthorization: Bearer x\r\n\r\n"
        % (len(BODY), BODY)
    )
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        answer = await router.ask(request)
    assert answer.status == 200
    assert answer.header("x-request-id") != "trailer"
    assert engine.requests[0].header("authorization") is None


@pytest.mark.parametrize(
    "lines",
    [(), ("Host: a", "Host: b"), ("Host: a b",), ("Host: ",), ("Host: a/b",)],
    ids=["none", "two", "space", "empty", "slash"],
)
async def test_one_valid_host_is_needed(start_router: Any, lines: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        answer = await router.ask(head(*lines, f"Content-Length: {len(BODY)}") + BODY)
    assert answer.status == 400
    assert answer.error()["code"] == "invalid_host"
    assert not engine.requests


async def test_too_many_headers_are_refused(start_router: Any) -> None:
    router = await start_router()
    lines = [f"X-{number}: 1" for number in range(120)]
    answer = await router.ask(head("Host: t", *lines, "Content-Length: 0"))
    assert answer.status == 431


async def test_a_head_that_is_too_long_is_refused_before_it_ends(start_router: Any) -> None:
    router = await start_router()
    async with connect(router.port) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: t\r\nX-A: ")
        for _ in range(20):
            client.send(b"a" * 8192)
            await client.writer.drain()
        assert (await client.answer()).status == 431
        assert await client.is_closed()


async def test_a_slow_head_is_cut_and_a_slow_body_answered_with_408(
    start_router: Any, quick: Any
) -> None:
    router = await start_router(settings=quick(request_head=0.3, request_body_idle=0.3))
    async with connect(router.port) as slow_head, connect(router.port) as slow_body:
        slow_head.send(b"POST / HTTP/1.1\r\nHost")
        slow_body.send(head("Host: t", "Content-Length: 1000") + b"{")
        assert (await slow_head.answer()).status == 408
        assert (await slow_body.answer()).status == 408
        assert await slow_head.is_closed()
        assert await slow_body.is_closed()


async def test_a_body_that_drips_is_cut_though_it_is_never_idle(
    start_router: Any, quick: Any
) -> None:
    router = await start_router(settings=quick(request_body_idle=0.5))
    async with connect(router.port) as client:
        client.send(head("Host: t", "Content-Length: 1000"))
        answer = asyncio.create_task(client.answer())
        while not answer.done():
            client.send(b" ")
            await asyncio.sleep(0.05)
        assert answer.result().status == 408


async def test_a_client_that_vanishes_is_noticed_by_the_kernel(start_router: Any) -> None:
    router = await start_router()
    async with connect(router.port) as client:
        client.send(get("/healthz"))
        await client.answer()
        (connection,) = router.server.server_state.connections
        peer = connection.transport.get_extra_info("socket")
        assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


async def test_a_connection_that_says_nothing_is_closed(start_router: Any, quick: Any) -> None:
    router = await start_router(settings=quick(request_head=0.3))
    async with connect(router.port) as client:
        assert await client.is_closed()


async def test_a_body_over_the_limit_is_refused_by_its_length_or_while_it_comes(
    start_router: Any,
) -> None:
    settings = RouterSettings(body_limit_mib=0.01)
    router = await start_router(settings=settings)
    async with connect(router.port) as client:
        client.send(head("Host: t", "Content-Length: 20000"))
        answer = await client.answer()
        assert answer.status == 413
        assert answer.error()["code"] == "body_too_large"
    async with connect(router.port) as client:
        client.send(head("Host: t", "Transfer-Encoding: chunked"))
        client.send(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        assert (await client.answer()).status == 413


async def test_a_body_at_the_limit_arrives_whole(start_router: Any) -> None:
    body = b'{"model": "demo", "messages": [], "x": "%b"}' % (b"x" * 3_000_000)
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        answer = await router.ask(post(CHAT, body))
    assert answer.status == 200
    assert engine.requests[0].body == body


@pytest.mark.parametrize("coding", ["gzip", "zstd", "br", "x-unknown"])
async def test_a_packed_body_is_refused_with_what_would_be_right(
    start_router: Any, coding: Any
) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        answer = await router.ask(post(CHAT, b"\x1f\x8b", headers={"content-encoding": coding}))
    assert answer.status == 415
    assert answer.header("accept-encoding") == "identity"
    assert answer.error()["code"] == "unsupported_content_encoding"
    assert not engine.requests


async def test_a_client_that_waits_for_100_continue_gets_it(start_router: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            client.send(head("Host: t", "Expect: 100-continue", f"Content-Length: {len(BODY)}"))
            assert (await client.answer()).status == 100
            client.send(BODY)
            assert (await client.answer()).status == 200


async def test_no_100_continue_for_a_body_that_will_be_refused(start_router: Any) -> None:
    router = await start_router(settings=RouterSettings(body_limit_mib=0.01))
    async with connect(router.port) as client:
        client.send(head("Host: t", "Expect: 100-continue", "Content-Length: 99999"))
        assert (await client.answer()).status == 413


async def test_pipelined_requests_are_answered_in_order(start_router: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            client.send(post(CHAT, BODY) + get("/healthz") + post(CHAT, BODY) + get("/nowhere"))
            answers = [await client.answer() for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 404]
    assert len(engine.requests) == 2


async def test_what_comes_behind_the_last_request_of_a_connection_is_not_answered(
    start_router: Any, caplog: pytest.LogCaptureFixture
) -> None:
    last = get("/nowhere", headers={"connection": "close"})
    refused = head("Host: t", "Content-Length: 2") + b"{}"
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        for first in (refused.replace(b"Host: t", b"Host: t\r\nConnection: close"), last):
            for behind in (b"NONSENSE\r\n\r\n", post(CHAT, BODY)):
                async with connect(router.port) as client:
                    client.send(first + behind)
                    assert (await client.answer()).status in (400, 404)
                    assert await client.is_closed()
    assert not engine.requests
    assert not caplog.records


async def test_a_broken_request_behind_a_good_one_spoils_only_itself(start_router: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            client.send(post(CHAT, BODY) + b"NONSENSE\r\n\r\n")
            assert (await client.answer()).status == 200
            assert (await client.answer()).status == 400
            assert await client.is_closed()


async def test_an_http_1_0_client_gets_an_answer_that_ends_with_the_connection(
    start_router: Any,
) -> None:
    events = Script.events('{"choices": []}')
    async with ScriptedEngine(events) as engine:
        router = await start_router(engine.url)
        body = b'{"model": "demo", "messages": [], "stream": true}'
        request = b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (
            CHAT.encode(),
            len(body),
            body,
        )
        answer = await router.ask(request)
    assert answer.status == 200
    assert answer.header("transfer-encoding") is None
    assert answer.framing == "close"
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_connection_close_is_honoured(start_router: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            client.send(post(CHAT, BODY, headers={"connection": "close"}))
            answer = await client.answer()
            assert answer.header("connection") == "close"
            assert await client.is_closed()


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
async def test_another_method_on_an_inference_route_is_405_with_allow(
    start_router: Any, method: Any
) -> None:
    router = await start_router()
    async with connect(router.port) as client:
        client.send(get(CHAT, method=method))
        answer = await client.answer(head_only=method == "HEAD")
        assert answer.status == 405
        assert answer.header("allow") == "POST, OPTIONS"
        client.send(get("/healthz"))
        assert (await client.answer()).status == 200


async def test_options_needs_no_key_and_does_nothing(start_router: Any) -> None:
    router = await start_router(keys_open=False)
    answer = await router.ask(get(CHAT, method="OPTIONS"))
    assert answer.status == 204
    assert answer.header("allow") == "POST, OPTIONS"


async def test_an_offer_of_another_protocol_is_passed_over(start_router: Any) -> None:
    offer = {
        "connection": "Upgrade, HTTP2-Settings",
        "upgrade": "h2c",
        "http2-settings": "AAMAAABk",
    }
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            request = post(CHAT, BODY, headers=offer)
            client.send(request[:-20])
            await asyncio.sleep(0.01)
            client.send(request[-20:] + post(CHAT, BODY, headers=offer, chunked=True))
            assert (await client.answer()).status == 200
            assert (await client.answer()).status == 200
    assert [request.body for request in engine.requests] == [BODY, BODY]
    assert engine.requests[0].header("http2-settings") is None


@pytest.mark.parametrize(
    "path",
    [
        "/sleep",
        "/collective_rpc",
        "/flush_cache",
        "/server_info",
        "/v1/load_lora_adapter",
        "/v1/../flush_cache",
        "//flush_cache",
        "/v1/%2e%2e/flush_cache",
        "/v1//chat/completions",
        "/v1/chat/completions/",
        "/v1/v1/chat/completions",
        "/v1/chat%2Fcompletions",
        "/docs",
        "/metrics",
    ],
)
async def test_only_listed_paths_pass_to_an_engine(start_router: Any, path: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        for method in ("POST", "GET", "PURGE"):
            answer = await router.ask(get(path, method=method, headers={"content-length": "0"}))
            assert answer.status in (404, 405)
            assert answer.header("content-type") == "application/json"
    assert not engine.requests


async def test_connections_over_the_limit_are_told_so(start_router: Any) -> None:
    router = await start_router(settings=RouterSettings(max_connections=2))
    async with connect(router.port) as one, connect(router.port) as two:
        one.send(get("/healthz"))
        two.send(get("/healthz"))
        await one.answer()
        await two.answer()
        async with connect(router.port) as three:
            answer = await three.answer()
            assert answer.status == 503
            assert answer.header("retry-after") == "1"
    await eventually(lambda: not router.router.metrics.connections)
    assert (await router.ask(get("/healthz"))).status == 200


async def test_thousands_of_malformed_requests_crash_nothing_and_smuggle_nothing(
    start_router: Any,
) -> None:
    """Mutations of a good request; each is answered with a code, or the connection closed."""
    draw = random.Random(20260131)
    good = post(CHAT, BODY, headers={"x-request-id": "a"})
    async with ScriptedEngine() as engine:
        router = await start_router(
            engine.url,
            settings=RouterSettings(deadlines=Deadlines(request_head=0.25, request_body_idle=0.25)),
        )

        async def attack() -> None:
            raw = bytearray(good)
            for _ in range(draw.randint(1, 4)):
                place = draw.randrange(1, len(raw))
                choice = draw.randrange(4)
                if choice == 0:
                    raw[place] = draw.randrange(256)
                elif choice == 1:
                    del raw[max(20, place) : place + draw.randint(1, 8)]
                elif choice == 2:
                    raw[place:place] = draw.choice((b"\r\n", b"\x00", b": ", b"\xff", b" ", b"{"))
                else:
                    del raw[max(place, 20) :]
            async with connect(router.port) as client:
                client.send(bytes(raw))
                client.send(b"")
                try:
                    answer = await client.answer()
                except (asyncio.IncompleteReadError, ConnectionError):
                    return
                assert answer.status < 500
                if answer.status != 200:
                    answer.error()

        for _ in range(20):
            await asyncio.gather(*(attack() for _ in range(25)))
        assert (await router.ask(good)).status == 200
    assert all("smuggled" not in name for request in engine.requests for name, _ in request.headers)
    assert router.in_flight == 0
