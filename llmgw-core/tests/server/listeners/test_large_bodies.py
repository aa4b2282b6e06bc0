"""A picture makes a chat of 12 MB: it passes where it may, and is refused early where it may not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmgw.testing.raw_http import connect, post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
LIMIT_MIB = 12.5


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return {"auth": {"api_keys": "on"}, "router": {"body_limit_mib": LIMIT_MIB}}


def picture(size: int) -> bytes:
    """Return a chat with one picture of this many bytes in base64."""
    url = {"url": "data:image/png;base64," + "A" * size}
    content = [{"type": "image_url", "image_url": url}]
    return json.dumps(
        {"model": "demo", "messages": [{"role": "user", "content": content}]}
    ).encode()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [1_000_000, 12_000_000])
async def test_c002_a_chat_of_megabytes_arrives_whole(
    listeners: Any, serving: str, size: int, chunked: bool
) -> None:
    body = picture(size)
    answer = await listeners.ask(serving, post(CHAT, body, headers=listeners.auth, chunked=chunked))
    assert answer.status == 200
    assert listeners.engine.requests[0].body == body


@pytest.mark.parametrize("chunked", [False, True])
async def test_c002_one_over_the_limit_is_refused_before_all_of_it_has_come(
    listeners: Any, listener: str, head: Any, chunked: bool
) -> None:
    over = int(LIMIT_MIB * 1024 * 1024) + 1
    is_admin = "admin" in listener
    auth = listeners.admin_auth if is_admin else listeners.auth
    lines = [f"{key}: {value}" for key, value in auth.items()]
    path = "/admin/v1/keys" if is_admin else CHAT
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {over}"
    async with connect(listeners.ports[listener]) as client:
        client.send(head("Host: 127.0.0.1", *lines, framing, path=path))
        if chunked:
            client.send(b"%x\r\n" % (2 * over) + b"x" * over)  # half of a chunk
        answer = await client.answer()
        assert (answer.status, answer.json()["error"]["code"]) == (413, "body_too_large")
        assert await client.is_closed()
    assert not listeners.engine.requests


async def test_c002_admin_listeners_have_no_use_for_as_much(listeners: Any) -> None:
    body = picture(12_000_000)
    for name in ("admin", "router admin"):
        for path in ("/admin/v1/keys", CHAT):
            sent = post(path, body, headers={"host": "127.0.0.1", **listeners.admin_auth})
            answer = await listeners.ask(name, sent)
            assert answer.status in (404, 405, 413), (name, path, answer.body[:300])
            assert answer.json()["error"]["code"], (name, path)
            assert len(answer.body) < 2_000, (name, path)  # nothing of it comes back
    assert not listeners.engine.requests
