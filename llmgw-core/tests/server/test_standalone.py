"""A router alone: fed by a server, serving on without it, and light."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import httpx
import pytest

from llmgw.config.loading import load_server
from llmgw.server.standalone import DRAIN_LIMIT_S, drain_limit_s
from llmgw.testing.cluster import running_router, running_server
from llmgw.testing.engine_script import Script, ScriptedEngine

pytestmark = pytest.mark.anyio

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
ANSWER = {"object": "chat.completion", "choices": []}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again: the router is real, and seen from outside."""
    with anyio.fail_after(8):
        while not await condition():  # noqa: ASYNC110 # there is no event to wait for out here
            await anyio.sleep(0.02)


async def test_a_router_serves_what_its_server_tells_it_and_goes_on_without_it(
    tmp_path: Path,
) -> None:
    async with ScriptedEngine(Script.plain(ANSWER)) as engine:
        endpoint = {"id": "e1", "url": engine.url, "models": ["m"], "health_path": None}
        async with running_server(tmp_path / "server", endpoints=[endpoint]) as server:
            token = server.admin.headers["Authorization"].removeprefix("Bearer ")
            url = f"http://{server.serving.admin}"
            async with running_router(tmp_path / "router", url, token) as (_, client):

                async def is_served() -> bool:
                    answer = await client.post("/v1/chat/completions", json=CHAT)
                    return answer.status_code == 200 and answer.json() == ANSWER

                await until(is_served)
                await until(anyio.Path(tmp_path / "router/table.json").exists)
        async with running_router(tmp_path / "router", url, token) as (serving, client):
            assert (await client.post("/v1/chat/completions", json=CHAT)).json() == ANSWER
            async with httpx.AsyncClient(trust_env=False) as admin:
                ready = await admin.get(f"http://{serving.admin}/readyz")
            assert ready.json() == {"status": "ready", "stale": True}


async def test_its_metrics_ask_for_the_token_of_its_own_state_folder(tmp_path: Path) -> None:
    async with (
        running_router(tmp_path, "http://127.0.0.1:9", "nobody") as (serving, _),
        httpx.AsyncClient(base_url=f"http://{serving.admin}", trust_env=False) as admin,
    ):
        token = await anyio.Path(tmp_path / "admin.token").read_text()
        right = {"Authorization": f"bearer {token.strip()}"}
        assert "llmgw_feed_stale 1" in (await admin.get("/metrics", headers=right)).text
        for sent in ("", "Bearer", "Bearer wrong", "Basic " + token.strip()):
            answer = await admin.get("/metrics", headers={"Authorization": sent})
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "unauthorized"
        odd = await admin.get("/metrics", headers=[(b"authorization", "Bearer clé“".encode())])
        assert odd.status_code == 401
        assert (await admin.get("/healthz")).status_code == 200


async def test_its_admin_listener_refuses_in_one_shape_and_redirects_nobody(tmp_path: Path) -> None:
    async with (
        running_router(tmp_path, "http://127.0.0.1:9", "nobody") as (serving, _),
        httpx.AsyncClient(base_url=f"http://{serving.admin}", trust_env=False) as admin,
    ):
        answers = {
            404: [await admin.get("/nowhere"), await admin.get("/healthz/")],
            405: [await admin.post("/healthz"), await admin.delete("/metrics")],
        }
    for status, refused in answers.items():
        for answer in refused:
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_routers_streams_are_given_longer_unless_the_operator_says_otherwise() -> None:
    assert drain_limit_s(load_server(None, {}, {}, needs_work=False)) == DRAIN_LIMIT_S
    assert drain_limit_s(load_server(None, {}, {"drain_limit": 7}, needs_work=False)) == 7.0


def test_a_router_brings_neither_the_store_nor_the_control_plane() -> None:
    """Its memory is bounded, and several run on one machine."""
    code = (
        "import sys, llmgw.cli.router, llmgw.server.process;"
        "heavy = {'sqlalchemy', 'alembic', 'grpc', 'llmgw.store', 'llmgw.control.plane'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
