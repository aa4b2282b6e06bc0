"""The playground: the API's stream, passed on to whoever is signed in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from llmgw.admin.app import build_admin
from llmgw.admin.parts import AdminParts
from llmgw.store import Store
from llmgw.store.tokens import Role
from llmgw.testing.engine_script import Script, ScriptedEngine

pytestmark = pytest.mark.anyio

HERE = "http://localhost:8081"
OPERATOR = "the-operator's-own"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "api_key": "llmgw_k_s"}
HELLO = '{"choices":[{"delta":{"content":"hello"}}]}'


@pytest.fixture
async def api() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(Script.events(HELLO)) as engine:
        yield engine


@pytest.fixture
async def browser(parts: AdminParts, api: ScriptedEngine) -> AsyncIterator[httpx.AsyncClient]:
    app = build_admin(replace(parts, api_url=api.url))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url=f"{HERE}/admin", headers={"origin": HERE}
    ) as client:
        yield client


async def sign_in(browser: httpx.AsyncClient, token: str) -> None:
    assert (await browser.post("/sign-in", data={"token": token})).status_code == 303


async def test_the_answer_is_the_apis_stream_asked_for_with_the_callers_own_key(
    browser: httpx.AsyncClient, api: ScriptedEngine
) -> None:
    await sign_in(browser, OPERATOR)
    answer = await browser.post("/playground", json=BODY)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert HELLO in answer.text
    (asked,) = api.requests
    assert asked.json() == {"model": "tiny", "messages": BODY["messages"], "stream": True}
    assert asked.header("authorization") == "Bearer llmgw_k_s"


async def test_only_operators_chat_and_only_from_our_page(
    browser: httpx.AsyncClient, store: Store, api: ScriptedEngine
) -> None:
    assert (await browser.post("/playground", json=BODY)).status_code == 401
    _, viewer = store.tokens.create("eyes", Role.VIEWER, who="test")
    await sign_in(browser, viewer.reveal())
    assert (await browser.post("/playground", json=BODY)).status_code == 403
    await sign_in(browser, OPERATOR)
    foreign = {"origin": "http://evil.example"}
    assert (await browser.post("/playground", json=BODY, headers=foreign)).status_code == 403
    assert api.requests == []


async def test_what_is_wrong_is_said_before_the_api_is_asked(
    browser: httpx.AsyncClient, api: ScriptedEngine
) -> None:
    await sign_in(browser, OPERATOR)
    for bad in ({**BODY, "messages": []}, {**BODY, "api_key": "clé\n"}, {"model": "x"}):
        assert (await browser.post("/playground", json=bad)).status_code == 400
    assert api.requests == []


async def test_a_server_that_does_not_say_where_its_api_is_says_that(
    parts: AdminParts, browser: httpx.AsyncClient
) -> None:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(build_admin(parts)),
        base_url=f"{HERE}/admin",
        headers={"origin": HERE},
    ) as client:
        await sign_in(client, OPERATOR)
        answer = await client.post("/playground", json=BODY)
    assert answer.status_code == 501
    assert "llmgw ctl chat" in answer.json()["error"]["message"]
