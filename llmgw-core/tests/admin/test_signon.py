"""Sign-in by an OpenID provider, here a small one that can also lie."""

from __future__ import annotations

import base64
import hashlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from llmgw.admin.app import build_admin
from llmgw.admin.parts import AdminParts
from llmgw.config.server import OidcSettings
from llmgw.testing.clock import FakeClock

pytest.importorskip("authlib")
jwk = pytest.importorskip("joserfc.jwk")
jwt = pytest.importorskip("joserfc.jwt")

pytestmark = pytest.mark.anyio
PAGE = "http://localhost:8081"


class Provider:
    """An issuer with one user. Fields of `lies` replace those of the honest identity token."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._key = jwk.RSAKey.generate_key(2048, {"kid": "k1"})
        self._asked: dict[str, str] = {}
        self.url = ""
        self.groups: list[str] = ["ops"]
        self.lies: dict[str, Any] = {}
        self.forge = False

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._metadata),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", self._keys),
            ]
        )

    def consent(self, url: str) -> str:
        """Do what a user's browser does at the provider; return the query that it comes back with."""
        self._asked = dict(parse_qsl(urlsplit(url).query))
        assert self._asked["redirect_uri"] == f"{PAGE}/admin/oidc/callback"
        assert self._asked["code_challenge_method"] == "S256"
        return f"code=the-code&state={self._asked['state']}"

    async def _metadata(self, _: Request) -> JSONResponse:
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
            }
        )

    async def _keys(self, _: Request) -> JSONResponse:
        return JSONResponse({"keys": [self._key.as_dict(private=False)]})

    async def _token(self, request: Request) -> JSONResponse:
        form = dict(parse_qsl((await request.body()).decode()))
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if form["code"] != "the-code" or challenge != self._asked["code_challenge"]:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        now = int(self._clock.wall())
        claims = {
            "iss": self.url,
            "aud": "gateway",
            "sub": "u1",
            "email": "ada@example.org",
            "groups": self.groups,
            "nonce": self._asked["nonce"],
            "iat": now,
            "exp": now + 300,
        } | self.lies
        key = jwk.RSAKey.generate_key(2048, {"kid": "k1"}) if self.forge else self._key
        token = jwt.encode({"alg": "RS256", "kid": "k1"}, claims, key)
        return JSONResponse({"access_token": "a", "token_type": "Bearer", "id_token": token})


@pytest.fixture
async def provider(clock: FakeClock) -> AsyncIterator[Provider]:
    made = Provider(clock)
    server = uvicorn.Server(uvicorn.Config(made.app, log_level="warning", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        made.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listening])
            yield made
            server.should_exit = True


@pytest.fixture
async def browser(parts: AdminParts, provider: Provider) -> AsyncIterator[httpx.AsyncClient]:
    oidc = OidcSettings(
        issuer=provider.url,
        client_id="gateway",
        page_url=PAGE,
        roles={"ops": "operator", "staff": "viewer"},
    )
    transport = httpx.ASGITransport(build_admin(replace(parts, oidc=oidc)))
    async with httpx.AsyncClient(transport=transport, base_url=f"{PAGE}/admin") as client:
        yield client


async def come_back(browser: httpx.AsyncClient, provider: Provider) -> httpx.Response:
    begun = await browser.get("/oidc?next=/admin/nodes")
    assert begun.headers["location"].startswith(f"{provider.url}/authorize?")
    return await browser.get(f"/oidc/callback?{provider.consent(begun.headers['location'])}")


async def test_the_providers_groups_say_what_one_may(
    browser: httpx.AsyncClient, provider: Provider
) -> None:
    assert "/admin/oidc?next=" in (await browser.get("/sign-in")).text
    provider.groups = ["staff", "ops", "else"]
    answer = await come_back(browser, provider)
    assert answer.headers["refresh"] == "0; url=/admin/nodes"
    page = await browser.get("/events")
    assert "ada@example.org (operator)" in page.text
    assert (await browser.get("/logs")).status_code == 200


async def test_who_has_no_role_stays_out(browser: httpx.AsyncClient, provider: Provider) -> None:
    provider.groups = ["guests"]
    answer = await come_back(browser, provider)
    assert answer.status_code == 403
    assert "has no role here" in answer.text
    assert (await browser.get("/nodes")).status_code == 303


@pytest.mark.parametrize(
    "lies",
    [
        {"aud": "another"},
        {"iss": "https://evil.example"},
        {"nonce": "another"},
        {"exp": 1},
        {"forge": True},
    ],
    ids=str,
)
async def test_a_token_that_proves_nothing_opens_nothing(
    browser: httpx.AsyncClient, provider: Provider, lies: dict[str, Any]
) -> None:
    provider.forge = "forge" in lies
    provider.lies = {} if provider.forge else lies
    answer = await come_back(browser, provider)
    assert answer.status_code == 401
    assert "proves nothing" in answer.text
    assert (await browser.get("/nodes")).status_code == 303


async def test_a_sign_in_that_another_browser_began_is_refused(
    browser: httpx.AsyncClient, provider: Provider
) -> None:
    begun = await browser.get("/oidc")
    query = provider.consent(begun.headers["location"])
    browser.cookies.clear()
    assert (await browser.get(f"/oidc/callback?{query}")).status_code == 401
    assert (await browser.get("/oidc/callback?code=x&state=")).status_code == 401


async def test_a_sign_in_is_good_once_and_not_for_ever(
    browser: httpx.AsyncClient, provider: Provider, clock: FakeClock
) -> None:
    begun = await browser.get("/oidc")
    query = provider.consent(begun.headers["location"])
    await clock.advance(601)
    assert (await browser.get(f"/oidc/callback?{query}")).status_code == 401
    answer = await come_back(browser, provider)
    assert answer.status_code == 200
    await clock.advance(3601)
    assert (await browser.get("/nodes")).status_code == 303


async def test_a_provider_that_is_away_is_told_so(
    browser: httpx.AsyncClient, provider: Provider
) -> None:
    begun = await browser.get("/oidc")
    query = provider.consent(begun.headers["location"])
    provider.url = "http://127.0.0.1:9"
    answer = await browser.get(f"/oidc/callback?{query}")
    assert answer.status_code in (401, 503)
    assert "OpenID provider" in answer.text
