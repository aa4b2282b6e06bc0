"""Requests whose head is that of the one before, byte for byte."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from llmgw.config.server import RouterSettings
from llmgw.domain.keys import ApiKey
from llmgw.testing.engine_script import ScriptedEngine
from llmgw.testing.raw_http import connect

pytestmark = pytest.mark.anyio

SHORT = b'{"model": "demo", "prompt": "a"}'
LONG = b'{"model": "demo", "prompt": "a longer one than before"}'
KEY = "llmgw_k1_secret"


def request(body: bytes, *, length: int | None = None, extra: str = "") -> bytes:
    size = len(body) if length is None else length
    head = f"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {size}\r\n{extra}"
    return f"{head}Authorization: Bearer {KEY}\r\n\r\n".encode() + body


def key(secret: str) -> ApiKey:
    return ApiKey(id="k1", secret_hash=hashlib.sha256(secret.encode()).hexdigest())


async def test_only_the_body_and_its_length_change_and_each_request_is_its_own(
    start_router: Any,
) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            ids = set()
            for body in (SHORT, LONG, SHORT, LONG):
                client.send(request(body))
                answer = await client.answer()
                assert answer.status == 200
                ids.add(answer.header("x-request-id"))
    assert [seen.body for seen in engine.requests] == [SHORT, LONG, SHORT, LONG]
    assert len(ids) == 4


async def test_the_parser_takes_over_in_the_middle_of_anything_and_back(start_router: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            client.send(request(SHORT))
            await client.answer()
            client.send(request(SHORT) + request(LONG))  # two at once
            assert (await client.answer()).status == 200
            assert (await client.answer()).status == 200
            client.send(request(LONG))
            assert (await client.answer()).status == 200
            client.send(request(SHORT, extra="Accept: text/plain\r\n"))
            assert (await client.answer()).status == 200
    assert [seen.body for seen in engine.requests] == [SHORT, SHORT, LONG, LONG, SHORT]
    assert [seen.header("accept") for seen in engine.requests] == [None] * 4 + ["text/plain"]


@pytest.mark.parametrize("length", ["+32", "-1", "0x20", "3 2", "32, 32", "²"])
async def test_a_length_that_is_none_is_still_refused(start_router: Any, length: str) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            client.send(request(SHORT))
            await client.answer()
            client.send(request(SHORT).replace(b"32", length.encode(), 1))
            answer = await client.answer()
            assert answer.status == 400
            assert await client.is_closed()
    assert len(engine.requests) == 1


async def test_a_key_that_was_revoked_since_opens_nothing(start_router: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url, keys_open=False)
        router.router.keys.replace([key("secret")])
        async with connect(router.port) as client:
            for _ in range(2):
                client.send(request(SHORT))
                assert (await client.answer()).status == 200
            router.router.keys.replace([key("another")])
            client.send(request(SHORT))
            assert (await client.answer()).status == 401
    assert len(engine.requests) == 2


async def test_a_body_above_the_limit_is_refused_under_a_known_head_too(start_router: Any) -> None:
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url, settings=RouterSettings(body_limit_mib=40 / 2**20))
        async with connect(router.port) as client:
            client.send(request(SHORT))
            assert (await client.answer()).status == 200
            client.send(request(LONG))
            assert (await client.answer()).status == 413
    assert len(engine.requests) == 1
