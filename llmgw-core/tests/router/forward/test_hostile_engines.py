"""Engines that would fill the router's memory."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from llmgw.testing.engine_script import Hang, Script, ScriptedEngine, Send, chunk

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("begun", [b"0\r\nx-a: ", b"2;x="], ids=["trailer", "extension"])
async def test_what_stands_around_chunks_without_an_end_is_502(
    start_router: Any, begun: bytes
) -> None:
    script = Script.raw(HEAD + chunk(b"{}") + begun, Send(b"a" * 65536, times=64), Hang())
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        answer = await router.chat()
        await engine.wait_until(lambda engine: engine.requests[0].peer_left)
    assert answer.status == 502
    assert answer.error()["code"] == "engine_lost"


async def test_an_answer_that_unpacks_to_a_thousand_times_its_size_is_502(
    start_router: Any,
) -> None:
    packed = gzip.compress(bytes(64 * 1024 * 1024))
    script = Script.plain(packed, headers=[("content-encoding", "gzip")])
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        answer = await router.chat()
    assert answer.status == 502
    assert answer.error()["code"] == "engine_lost"


async def test_sizes_that_come_apart_from_their_chunks_are_no_head(start_router: Any) -> None:
    pieces = [Send(b"%x;%b\r\n" % (2, b"x" * 8192)), Send(b"12\r\n")] * 64
    script = Script.raw(HEAD, *pieces, b"0\r\n\r\n")
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        answer = await router.chat()
    assert answer.status == 200
    assert answer.body == b"12" * 64
