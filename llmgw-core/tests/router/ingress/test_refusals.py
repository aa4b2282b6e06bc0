"""Every refusal has one shape, and names the field at fault (C011, C060, C063)."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from llmgw.domain.ids import ModelName
from llmgw.domain.keys import ApiKey, KeyLimits
from llmgw.testing.engine_script import Script, ScriptedEngine
from llmgw.testing.raw_http import get, post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
GOOD = b'{"model": "demo", "messages": []}'


def deep(levels: int) -> bytes:
    return b'{"model": "demo", "x": ' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


BAD_BODIES = {
    "empty": (b"", None),
    "not JSON": (b'{"model": "demo", "messages": [', None),
    "an array": (b"[]", None),
    "null": (b"null", None),
    "no model": (b'{"messages": []}', "model"),
    "a null model": (b'{"model": null}', "model"),
    "a number as model": (b'{"model": 1}', "model"),
    "a text as stream": (b'{"model": "demo", "stream": "yes"}', "stream"),
    "a list as stream options": (b'{"model": "demo", "stream_options": []}', "stream_options"),
    "two models": (b'{"model": "demo", "messages": [], "model": "denied"}', "model"),
    "two models, one escaped": (b'{"model": "demo", "mod\\u0065l": "denied"}', "model"),
    "half a letter in a message": (b'{"model": "demo", "messages": ["\\ud83d"]}', None),
    "half a letter as model": (b'{"model": "\\ud83d"}', None),
    "two streams": (b'{"model": "demo", "stream": false, "stream": true}', "stream"),
    "two models around a document": (
        b'{"model": "demo", "messages": ["' + b"x" * 30_000 + b'"], "model": "denied"}',
        "model",
    ),
    "no JSON behind a document": (
        b'{"model": "demo", "a": "' + b"x" * 30_000 + b'", "b": ]}',
        None,
    ),
    "too deep": (deep(65), None),
    "much too deep": (deep(100_000), None),
    "too deep among strings": (
        b'{"model": "demo", "a": "'
        + b"]" * 90
        + b'", "x": '
        + b'[{"\\"]}": ' * 40
        + b"1"
        + b"}]" * 40
        + b"}",
        None,
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("body", "param"), BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_a_bad_body_is_400_and_reaches_no_engine(
    start_router: Any, body: Any, param: Any, stream: Any
) -> None:
    if stream and body.startswith(b"{") and b"stream" not in body:
        body = body.replace(b"{", b'{"stream": true, ', 1)
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        answer = await router.ask(post(CHAT, body))
    assert answer.status == 400
    assert answer.header("content-type") == "application/json"
    error = answer.error()
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert not engine.requests


@pytest.mark.parametrize(
    "body",
    [
        deep(64),
        b'{"model": "demo", "metadata": {"model": "x"}, "messages": [{"model": 1}, {"stream": 2}]}',
        b'{"model": "demo", "messages": [{"content": "\\"model\\": \\"x\\", \\"stream\\": 1"}]}',
        b' \n{"model": "demo", "big": 123456789012345678901234567890, "tiny": 1e-400}',
        b'{"model": "demo", "messages": [' + b'{"content": "]]]{{{"},' * 50 + b"1]}",
    ],
)
async def test_odd_but_clear_bodies_pass_byte_for_byte(start_router: Any, body: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        answer = await router.ask(post(CHAT, body))
    assert answer.status == 200
    assert engine.requests[0].body == body


@pytest.mark.parametrize("model", ["nope", "Demo", "demo ", "demo/../x", "..", ""])
async def test_an_unknown_model_is_404(start_router: Any, model: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        answer = await router.ask(post(CHAT, {"model": model, "messages": []}))
    assert answer.status == 404
    assert answer.error()["code"] == "model_not_found"
    assert answer.error()["param"] == "model"
    assert not engine.requests


async def test_random_model_names_make_no_series(start_router: Any) -> None:
    router = await start_router("http://127.0.0.1:1")
    for number in range(50):
        await router.ask(post(CHAT, {"model": f"m{number}"}))
    page = (await router.router.metrics_page()).decode()
    assert 'llmgw_refused_requests_total{model="other",status="404"} 50' in page
    assert "m17" not in page


def key(**more: Any) -> ApiKey:
    digest = hashlib.sha256(b"right").hexdigest()
    return ApiKey(id="k1", secret_hash=digest, **more)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer llmgw_k1_wrong",
        "Bearer llmgw_k2_right",
        "Bearer clé-é",
        "Bearer “llmgw_k1_right”",
        "\ufeffBearer llmgw_k1_right",
        "Bearer " + "x" * 10_000,
        "Basic dXNlcjpwYXNz",
    ],
)
async def test_a_wrong_key_is_401_whatever_it_is_made_of(start_router: Any, value: Any) -> None:
    router = await start_router("http://127.0.0.1:1", keys_open=False)
    router.router.keys.replace([key()])
    line = "" if value is None else f"Authorization: {value}\r\n"
    request = (
        f"POST {CHAT} HTTP/1.1\r\nHost: t\r\n{line}Content-Length: {len(GOOD)}\r\n\r\n".encode()
        + GOOD
    )
    answer = await router.ask(request)
    assert answer.status == 401
    assert answer.error()["code"] == "invalid_api_key"
    assert answer.header("www-authenticate") == "Bearer"
    assert "right" not in answer.body.decode()


@pytest.mark.parametrize("header", ["Authorization: bearer ", "X-Api-Key: ", "api-key: "])
async def test_a_right_key_opens_by_every_header_that_may_carry_one(
    start_router: Any, header: Any
) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url, keys_open=False)
        router.router.keys.replace([key()])
        request = (
            f"POST {CHAT} HTTP/1.1\r\nHost: t\r\n{header}llmgw_k1_right\r\n"
            f"Content-Length: {len(GOOD)}\r\n\r\n".encode()
        )
        answer = await router.ask(request + GOOD)
    assert answer.status == 200
    assert engine.requests[0].header("authorization") is None
    assert engine.requests[0].header("x-api-key") is None


async def test_a_body_without_a_key_is_refused_before_it_is_sent(start_router: Any) -> None:
    router = await start_router(keys_open=False)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: 60000000\r\n\r\n"
    answer = await router.ask(head.encode())
    assert answer.status == 401


async def test_a_key_for_one_model_opens_no_other_by_any_name(
    start_router: Any, make_endpoint: Any
) -> None:
    async with ScriptedEngine() as engine:
        endpoints = [
            make_endpoint(engine.url, name="a", models=(ModelName("allowed"),)),
            make_endpoint(engine.url, name="d", models=(ModelName("denied"), ModelName("alias"))),
        ]
        router = await start_router(endpoints=endpoints, keys_open=False)
        router.router.keys.replace([key(models=(ModelName("allowed"),))])
        auth = {"authorization": "Bearer llmgw_k1_right"}
        for model in ("denied", "alias", "allowed ", "Allowed"):
            answer = await router.ask(post(CHAT, {"model": model}, headers=auth))
            assert answer.status == 404
        query = await router.ask(post(CHAT + "?model=denied", {"model": "allowed"}, headers=auth))
        shown = await router.ask(get("/v1/models", headers=auth))
        one = await router.ask(get("/v1/models/denied", headers=auth))
    assert query.status == 200
    assert query.header("x-llmgw-endpoint") == "a"
    assert engine.requests[0].line.split()[1] == CHAT
    assert [card["id"] for card in shown.json()["data"]] == ["allowed"]
    assert one.status == 404


async def test_a_place_under_a_key_is_given_back_however_a_request_ends(start_router: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url, keys_open=False)
        router.router.keys.replace([key(limits=KeyLimits(concurrent_requests=1))])
        auth = {"authorization": "Bearer llmgw_k1_right"}
        for script in (
            Script.plain({"ok": 1}),
            Script.plain({"error": "bad"}, status=400),
            Script.plain({"error": "bad"}, status=500),
            Script.events('{"choices": []}'),
        ):
            engine.script = script
            for body in (
                {"model": "demo"},
                {"model": "nope"},
                {"model": 1},
                {"model": "demo", "stream": True},
            ):
                await router.ask(post(CHAT, body, headers=auth))
            engine.script = Script.plain({"ok": 1})
            assert (await router.ask(post(CHAT, {"model": "demo"}, headers=auth))).status == 200
    assert [grant.in_flight for grant in router.router.keys.grants()] == [0]


async def test_an_unknown_routing_profile_is_named(start_router: Any) -> None:
    router = await start_router("http://127.0.0.1:1")
    answer = await router.ask(post(CHAT, GOOD, headers={"x-llmgw-profile": "nope"}))
    assert answer.status == 400
    assert answer.error()["code"] == "unknown_routing_profile"
