"""Requests as they come over the wire: what is refused, what passes, and how large it may be."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from llmgw.testing.engine_script import Script
from llmgw.testing.raw_http import connect, get, post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
BODY = b'{"model": "demo", "messages": [{"role": "user", "content": "say hello"}]}'
HIDDEN = post(CHAT, BODY)
ORIGIN = "https://app.example"


def malformed(head: Any) -> dict[str, bytes]:
    """Return requests that two parsers might read differently."""
    return {
        "both framings": head("Host: t", "Content-Length: 5", "Transfer-Encoding: chunked")
        + b"0\r\n\r\n",
        "two lengths": head("Host: t", "Content-Length: 73", "Content-Length: 0") + BODY,
        "a folded header": head("Host: t", "X-A: 1", " 2", "Content-Length: 0"),
        "bare line feeds": head("Host: t", "Content-Length: 0").replace(b"\r\n", b"\n"),
        "a space before the colon": head("Host: t", "Content-Length : 0"),
        "an odd chunk": head("Host: t", "Transfer-Encoding: chunked", path="/x")
        + b"0x5\r\nhello\r\n",
        "a tunnel": b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
        "no host": head("Content-Length: 0"),
        "two hosts": head("Host: a", "Host: b", "Content-Length: 0"),
        "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9,
    }


async def test_c001_what_could_be_read_in_two_ways_is_refused_and_closed(
    listeners: Any, listener: str, head: Any
) -> None:
    for what, sent in malformed(head).items():
        async with connect(listeners.ports[listener]) as client:
            client.send(sent + HIDDEN)
            answer = await client.answer()
            assert answer.status == 400, what
            assert answer.json()["error"]["code"] in ("invalid_http", "invalid_host"), what
            assert await client.is_closed(), what
    assert not listeners.engine.requests


async def test_c002_heads_and_bodies_have_their_limits(
    listeners: Any, listener: str, head: Any
) -> None:
    async def status(sent: bytes) -> int:
        status: int = (await listeners.ask(listener, sent)).status
        return status

    assert await status(head("Host: t", "Content-Length: 20000")) == 413
    big = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    auth = [f"{key}: {value}" for key, value in listeners.auth.items()]
    assert await status(head("Host: t", *auth, "Transfer-Encoding: chunked") + big) == 413
    assert await status(head("Host: t", *(f"X-{number}: 1" for number in range(120)))) == 431
    assert await status(head("Host: t", "X-A: " + "a" * 70_000)) == 431
    assert await status(head("Host: t", "Content-Encoding: gzip", "Content-Length: 0")) == 415
    assert not listeners.engine.requests


async def test_slow_heads_and_bodies_are_cut(listeners: Any, listener: str, head: Any) -> None:
    auth = [f"{key}: {value}" for key, value in listeners.auth.items()]
    for sent in (b"POST / HTTP/1.1\r\nHo", head("Host: t", *auth, "Content-Length: 99") + b"{"):
        async with connect(listeners.ports[listener]) as client:
            client.send(sent)
            assert (await client.answer()).status == 408
            assert await client.is_closed()


async def test_c003_an_answer_that_was_packed_comes_plain(listeners: Any, serving: str) -> None:
    whole = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    packed = gzip.compress(json.dumps(whole).encode())
    listeners.engine.script = Script.plain(packed, headers=[("content-encoding", "gzip")])
    for accepted in ("gzip", "identity", None):
        headers = dict(listeners.auth) if accepted is None else {"accept-encoding": accepted}
        answer = await listeners.ask(serving, post(CHAT, BODY, headers=listeners.auth | headers))
        assert answer.json() == whole
        assert answer.header("content-encoding") is None


async def test_c004_a_packed_request_is_refused_with_what_would_be_right(
    listeners: Any, serving: str
) -> None:
    for coding in ("gzip", "zstd", "x-unheard-of"):
        headers = {**listeners.auth, "content-encoding": coding}
        answer = await listeners.ask(serving, post(CHAT, gzip.compress(BODY), headers=headers))
        assert (answer.status, answer.header("accept-encoding")) == (415, "identity")
        assert answer.error()["code"]
    assert not listeners.engine.requests


@pytest.mark.parametrize("path", ["acme/tiny-7b:q4", "acme%2Ftiny-7b%3Aq4"])
async def test_c005_a_model_with_slash_and_colon_is_found_raw_and_escaped(
    listeners: Any, serving: str, path: str
) -> None:
    answer = await listeners.ask(serving, get(f"/v1/models/{path}", headers=listeners.auth))
    assert (answer.status, answer.json()["id"]) == (200, "acme/tiny-7b:q4")
    assert (await listeners.chat(serving, model="acme/tiny-7b:q4")).status == 200
    unknown = await listeners.ask(serving, get("/v1/models/acme/other", headers=listeners.auth))
    assert (unknown.status, unknown.error()["code"]) == (404, "model_not_found")


async def test_c006_c011_c062_no_listener_redirects_or_knows_a_side_door(
    listeners: Any, listener: str
) -> None:
    paths = ("/flush_cache", "/v1/../flush_cache", "//healthz", "/v1/%2e%2e/sleep", "/docs")
    slashes = ("/healthz/", "/v1/models/demo/", "/v1/chat/completions/", "/v1/v1/models")
    async with connect(listeners.ports[listener]) as client:
        for path in (*paths, *slashes):
            for method in ("GET", "POST", "PURGE"):
                sent = get(path, method=method, headers={**listeners.auth, "content-length": "0"})
                client.send(sent.replace(b"host: test", b"host: 127.0.0.1"))
                answer = await client.answer()
                assert answer.status in (404, 405), (path, method)
                assert answer.json()["error"]["code"], (path, method)
                if answer.status == 405:
                    assert answer.header("allow"), (path, method)
    assert not listeners.engine.requests


async def test_c007_a_browser_may_ask_first_and_read_refusals(listeners: Any, serving: str) -> None:
    asks = {"origin": ORIGIN, "access-control-request-method": "POST"}
    preflight = await listeners.ask(serving, get(CHAT, method="OPTIONS", headers=asks))
    assert (preflight.status, preflight.header("access-control-allow-origin")) == (204, ORIGIN)
    evil = {**asks, "origin": "https://evil.example"}
    refused = await listeners.ask(serving, get(CHAT, method="OPTIONS", headers=evil))
    assert refused.header("access-control-allow-origin") is None
    unkeyed = await listeners.ask(serving, post(CHAT, BODY, headers={"origin": ORIGIN}))
    assert (unkeyed.status, unkeyed.header("access-control-allow-origin")) == (401, ORIGIN)
    assert not listeners.engine.requests


@pytest.mark.parametrize("stream", [False, True])
async def test_c008_headers_that_must_stop_at_the_router_stop(
    listeners: Any, serving: str, stream: bool
) -> None:
    listeners.engine.script = Script.plain(
        {"choices": []}, headers=[("set-cookie", "a=b"), ("server", "engine"), ("x-inner", "1")]
    )
    kept = {"x-request-id": "req-42"}
    stopped = {
        "cookie": "session=abc",
        "proxy-authorization": "Basic x",
        "te": "trailers",
        "connection": "keep-alive, x-hop",
        "x-hop": "1",
    }
    body = {"model": "demo", "messages": [], "stream": stream}
    answer = await listeners.ask(
        serving, post(CHAT, body, headers={**listeners.auth, **kept, **stopped})
    )
    (request,) = listeners.engine.requests
    seen = dict(request.headers)
    assert not seen.keys() & {*stopped, "authorization"}
    assert seen["x-request-id"] == answer.header("x-request-id") == "req-42"
    assert seen["host"] == f"127.0.0.1:{listeners.engine.port}"
    assert answer.header("set-cookie") is answer.header("x-inner") is None
    assert answer.header("server") != "engine"


@pytest.mark.parametrize("stream", [False, True])
async def test_c009_c011_c063_bad_bodies_are_400_or_404_with_a_code(
    listeners: Any, serving: str, stream: bool
) -> None:
    start = '{"stream": true, ' if stream else "{"
    bad = {
        '"model": "demo", "messages": ["\\ud83d"]}': 400,
        '"model": "demo", "model": "other"}': 400,
        '"model": 5}': 400,
        '"messages": []}': 400,
        '"model": "demo", "messages": [': 400,
        '"model": "nope"}': 404,
        '"model": "demo "}': 404,
    }
    for rest, status in bad.items():
        sent = post(CHAT, (start + rest).encode(), headers=listeners.auth)
        answer = await listeners.ask(serving, sent)
        assert answer.status == status, rest
        assert answer.header("content-type") == "application/json"
        assert answer.error()["code"], rest
    assert not listeners.engine.requests


@pytest.mark.parametrize("vector", [[0.25, -1.5, 3.0, 1e-7], "AACAPgAAwL8AAEBAlb/WMw=="])
async def test_c069_vectors_pass_in_the_shape_that_was_asked_for(
    listeners: Any, serving: str, vector: object
) -> None:
    given = {"data": [{"index": 0, "embedding": vector}], "usage": {"prompt_tokens": 2}}
    listeners.engine.script = Script.plain(given)
    for asked in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        body = {"model": "demo", "input": ["one", "two"], **asked}
        answer = await listeners.ask(serving, post("/v1/embeddings", body, headers=listeners.auth))
        assert answer.json() == given
        assert listeners.engine.requests[-1].json() == body
