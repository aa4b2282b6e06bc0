"""Every route of the API, the admin API and the page: with no, a wrong and a low credential.

Agents have a listener without routes: TLS itself asks for a certificate (llmgw-agent/tests/hub).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route as StarletteRoute

from llmgw.admin.api import all_operations
from llmgw.admin.app import build_admin
from llmgw.admin.pages.actions import ACTIONS
from llmgw.admin.pages.views import VIEWS
from llmgw.admin.parts import AdminParts
from llmgw.clock import SystemClock
from llmgw.domain.keys import Scope
from llmgw.domain.secret import Secret
from llmgw.router.routes import COLD, HOT, Route
from llmgw.store import open_store
from llmgw.store.tokens import Role
from llmgw.testing.cluster import RunningServer, running_server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
ENDPOINT = {"id": "e", "url": "http://127.0.0.1:9", "models": ["tiny"], "health_path": None}
#: Of the page, and open to anybody: where one signs in, and the files that this takes.
OPEN_PAGES = {"/", "/admin/sign-in", "/admin/sign-out", "/admin/static/{name}"}
OPEN_PAGES |= {"/admin/oidc", "/admin/oidc/callback"}


@pytest.fixture
def keys(tmp_path: Path) -> dict[Scope, str]:
    """Keys with one scope each, made by the store alone: the API gives all scopes."""
    store = open_store(None, state_dir=tmp_path, clock=SystemClock())
    try:
        return {
            scope: store.keys.create("low", who="test", scopes=(scope,))[1].reveal()
            for scope in Scope
        }
    finally:
        store.close()


@pytest.fixture
async def server(keys: dict[Scope, str], tmp_path: Path) -> AsyncIterator[RunningServer]:
    async with running_server(
        tmp_path, endpoints=[ENDPOINT], auth={"api_keys": "on", "admin_on_api": True}
    ) as running:
        yield running


def requests(routes: tuple[Route, ...]) -> Iterator[tuple[Route, str, str]]:
    for route in routes:
        for method in route.methods:
            yield route, method, route.path.replace("{model}", "tiny")


async def test_no_route_of_the_api_answers_without_a_good_key(server: RunningServer) -> None:
    for route, method, path in requests((*HOT, *COLD)):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic YTpi"}):
            answer = await server.api.request(method, path, json=BODY, headers=headers)
            if route.scope is None:
                assert answer.status_code in (200, 503), (method, path)
            else:
                assert answer.status_code == 401, (method, path, headers)


async def test_no_route_of_the_api_answers_to_a_key_without_its_scope(
    server: RunningServer, keys: dict[Scope, str]
) -> None:
    other = {Scope.INFERENCE: keys[Scope.MODELS], Scope.MODELS: keys[Scope.INFERENCE]}
    for route, method, path in requests((*HOT, *COLD)):
        if route.scope is not None:
            headers = {"authorization": f"Bearer {other[route.scope]}"}
            answer = await server.api.request(method, path, json=BODY, headers=headers)
            assert answer.status_code == 403, (method, path, answer.text)


async def test_admin_operations_refuse_api_keys_and_strangers_on_both_listeners(
    server: RunningServer, keys: dict[Scope, str]
) -> None:
    key = keys[Scope.INFERENCE]
    strangers = httpx.AsyncClient(base_url=server.admin.base_url, trust_env=False)
    async with strangers:
        for operation in all_operations():
            path = re.sub(r"\{\w+(:path)?\}", "x", operation.path)
            clients = [(strangers, f"/admin/v1{path}"), (server.api, f"/admin/v1{path}")]
            if operation.path in ("/metrics", "/healthz", "/readyz"):
                clients = [(strangers, path)]
            for client, url in clients:
                for headers in ({}, {"authorization": f"Bearer {key}"}):
                    answer = await client.request(operation.method, url, headers=headers)
                    wanted = (200, 503) if operation.role is None else (401,)
                    assert answer.status_code in wanted, (operation.method, url)


async def test_every_page_leads_strangers_to_the_sign_in_and_refuses_low_roles(
    server: RunningServer,
) -> None:
    origin = str(server.admin.base_url).rstrip("/")
    made = await server.admin.post("/admin/v1/tokens", json={"name": "eyes", "role": "viewer"})
    async with httpx.AsyncClient(base_url=origin, trust_env=False) as browser:
        browser.headers["origin"] = origin
        forms = {f"/admin{item.path}": item.operation.role for item in ACTIONS}
        pages = {f"/admin{item.path}": item.role for item in VIEWS}
        for cookies in ({}, {"llmgw_session": "wrong"}):
            browser.cookies.update(cookies)
            for method, paths in (("GET", pages), ("POST", forms)):
                for path in paths:
                    answer = await browser.request(method, re.sub(r"\{[^}]+\}", "x", path))
                    assert answer.status_code == 303, (method, path)
                    assert answer.headers["location"].startswith("/admin/sign-in"), path
            assert (await browser.post("/admin/playground", json={})).status_code == 401
        browser.cookies.clear()
        await browser.post("/admin/sign-in", data={"token": made.json()["secret"]})
        for path, role in forms.items():
            answer = await browser.post(re.sub(r"\{[^}]+\}", "x", path), data={})
            assert role is not None
            assert answer.status_code == 403, path
        for path, role in pages.items():
            answer = await browser.get(re.sub(r"\{[^}]+\}", "x", path))
            assert (answer.status_code == 403) == (role is not Role.VIEWER), path


def test_the_walks_above_leave_no_route_of_the_admin_listener_out() -> None:
    parts = AdminParts(token=Secret("x"), clock=SystemClock(), server="s")
    served = {
        route.path for route in build_admin(parts).routes if isinstance(route, StarletteRoute)
    }
    walked = {f"/admin/v1{item.path}" for item in all_operations()}
    walked |= {item.path for item in all_operations()}
    walked |= {f"/admin{item.path}" for item in (*VIEWS, *ACTIONS)}
    assert served - walked == OPEN_PAGES | {"/admin/", "/admin/v1/openapi.json"}
