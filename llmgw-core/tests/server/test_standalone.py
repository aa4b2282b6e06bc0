"""A router alone: fed by a server, serving on without it, and light."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import httpx
import pytest

from llmgw.config.loading import load_server
from llmgw.errors import ConfigError
from llmgw.server.standalone import DRAIN_LIMIT_S, drain_limit_s
from llmgw.testing.cluster import running_router, running_server
from llmgw.testing.engine_script import Script, ScriptedEngine
from llmgw.testing.pem import write_pair
from llmgw.testing.site import free_port

pytestmark = pytest.mark.anyio

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
ANSWER = {"object": "chat.completion", "choices": []}


async def until(condition: Callable[[], Awaitable[bool]], limit_s: float = 8) -> None:
    """Look again and again: the router is real, and seen from outside."""
    with anyio.fail_after(limit_s):
        while not await condition():  # noqa: ASYNC110 # there is no event to wait for out here
            await anyio.sleep(0.02)


async def is_up(admin: str) -> bool:
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(f"http://{admin}/healthz")).is_success
    except httpx.TransportError:
        return False


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


@pytest.mark.timeout(120)
async def test_with_two_servers_the_kill_of_one_is_not_noticed_and_the_other_is_followed(
    tmp_path: Path,
) -> None:
    token = "the-same-token-everywhere"
    admins = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    urls = ",".join(f"http://{admin}" for admin in admins)
    for name in ("one", "two"):
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "admin.token").write_text(token)
    async with ScriptedEngine(Script.plain(ANSWER)) as engine:
        flags = ("--listen", "127.0.0.1:0", "--admin-listen", admins[0])
        state = ("--state-dir", str(tmp_path / "one"))
        said = ("--endpoint", f"e1={engine.url}=m")
        one = await anyio.open_process(
            [sys.executable, "-m", "llmgw", "server", *flags, *state, *said], stdout=None
        )
        try:
            await until(partial(is_up, admins[0]), 30)
            async with running_router(tmp_path / "router", urls, token) as (_, client):

                async def is_served(model: str = "m") -> bool:
                    answer = await client.post(
                        "/v1/chat/completions", json={**CHAT, "model": model}
                    )
                    return answer.status_code == 200

                await until(is_served)
                endpoint = {"id": "e2", "url": engine.url, "models": ["m", "n"]}
                endpoints = [{**endpoint, "health_path": None}]
                async with running_server(
                    tmp_path / "two", endpoints=endpoints, admin_listen=admins[1]
                ):
                    one.kill()
                    assert all([await is_served() for _ in range(20)])
                    # The router looks for a server that is away less and less often.
                    await until(lambda: is_served("n"), 40)
        finally:
            if one.returncode is None:
                one.kill()
            await one.aclose()


async def test_servers_behind_a_private_authority_are_followed_where_it_is_trusted(
    tmp_path: Path,
) -> None:
    pair = write_pair(tmp_path / "pair")
    tls = {"certificate": str(pair / "cert.pem"), "key": str(pair / "key.pem")}
    async with ScriptedEngine(Script.plain(ANSWER)) as engine:
        endpoint = {"id": "e1", "url": engine.url, "models": ["m"], "health_path": None}
        async with running_server(tmp_path / "server", endpoints=[endpoint], tls=tls) as server:
            token = (tmp_path / "server/admin.token").read_text().strip()
            url = f"https://localhost:{server.serving.admin.port}"
            trusting = running_router(
                tmp_path / "a", url, token, tls={"servers_ca": str(pair / "cert.pem")}
            )
            async with trusting as (_, client):
                assert (await client.post("/v1/chat/completions", json=CHAT)).json() == ANSWER
            async with running_router(tmp_path / "b", url, token) as (serving, _):
                async with httpx.AsyncClient(trust_env=False) as admin:
                    ready = await admin.get(f"http://{serving.admin}/readyz")
                assert ready.json() == {"status": "not ready", "stale": True}


async def test_a_file_that_is_no_authority_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "ca.pem"
    wrong.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(ExceptionGroup) as caught:
        async with running_router(
            tmp_path, "https://localhost:1", "t", tls={"servers_ca": str(wrong)}
        ):
            pass
    assert caught.group_contains(ConfigError, match="ca.pem cannot be used", depth=None)


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
