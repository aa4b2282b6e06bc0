"""Embeddings in both shapes, and pictures by URL: what must pass through unread."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from llmgw.testing.engine_script import Script, ScriptedEngine
from llmgw.testing.raw_http import post

pytestmark = pytest.mark.anyio

NUMBERS = (0.25, -1.5, 3.0, 1e-7)
PACKED = base64.b64encode(struct.pack("<4f", *NUMBERS)).decode()


@pytest.mark.parametrize("asked", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
@pytest.mark.parametrize("vector", [list(NUMBERS), PACKED], ids=["floats", "base64"])
async def test_c069_vectors_reach_the_client_as_the_engine_gave_them(
    start_router: Any, asked: dict[str, str], vector: object
) -> None:
    item = {"object": "embedding", "index": 0, "embedding": vector}
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    given = {"object": "list", "data": [item], "model": "demo", "usage": usage}
    inputs: list[object] = ["text", ["one", "two"], [1, 2, 3], [[1], [2]], ["x"] * 2000]
    async with ScriptedEngine(Script.plain(given)) as engine:
        router = await start_router(engine.url)
        for text in inputs:
            body = {"model": "demo", "input": text, **asked}
            answer = await router.ask(post("/v1/embeddings", body))
            assert answer.json() == given
            assert engine.requests[-1].json() == body
    records = router.router.ledger.batch().records
    assert [record.prompt_tokens for record in records] == [2] * len(inputs)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "http://2130706433/",
        "data:,",
    ],
)
async def test_c064_a_picture_s_url_is_the_engine_s_business_and_never_fetched(
    start_router: Any, url: str
) -> None:
    picture = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": "demo", "messages": [{"role": "user", "content": [picture]}]}
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url)
        assert (await router.ask(post("/v1/chat/completions", body))).status == 200
        assert engine.connections == 1
    assert engine.requests[0].json() == body


async def test_c002_a_chat_with_a_picture_of_12_mb_arrives_whole(start_router: Any) -> None:
    picture = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + "A" * 12_000_000},
    }
    body = {"model": "demo", "messages": [{"role": "user", "content": [picture]}]}
    for chunked in (False, True):
        async with ScriptedEngine() as engine:
            router = await start_router(engine.url)
            answer = await router.ask(post("/v1/chat/completions", body, chunked=chunked))
        assert answer.status == 200
        assert engine.requests[0].json() == body
