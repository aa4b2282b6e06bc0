"""Browsers: preflights without keys, and errors that a page may read."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.config.server import RouterSettings
from llmgw.testing.raw_http import get, post

pytestmark = pytest.mark.anyio

ASK = {
    "origin": "https://app.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type",
}


@pytest.fixture
async def router(start_router: Any) -> Any:
    settings = RouterSettings(cors_origins=("https://app.example",))
    return await start_router(settings=settings, keys_open=False)


async def test_a_preflight_of_an_allowed_origin_needs_no_key(router: Any) -> None:
    for path in ("/v1/chat/completions", "/v1/models"):
        answer = await router.ask(get(path, method="OPTIONS", headers=ASK))
        assert answer.status == 204
        assert answer.header("access-control-allow-origin") == "https://app.example"
        assert "POST" in answer.header("access-control-allow-methods")
        assert answer.header("access-control-allow-headers") == "authorization, content-type"


async def test_another_origin_is_not_allowed(router: Any) -> None:
    headers = {**ASK, "origin": "https://evil.example"}
    answer = await router.ask(get("/v1/models", method="OPTIONS", headers=headers))
    assert answer.header("access-control-allow-origin") is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
async def test_the_401_of_the_real_call_can_be_read_by_the_page(router: Any, path: Any) -> None:
    origin = {"origin": "https://app.example"}
    method = get(path, headers=origin)
    request = post(path, {"model": "demo"}, headers=origin) if "chat" in path else method
    answer = await router.ask(request)
    assert answer.status == 401
    assert answer.header("access-control-allow-origin") == "https://app.example"
    assert answer.header("www-authenticate") == "Bearer"


async def test_without_configuration_no_origin_is_allowed(start_router: Any) -> None:
    router = await start_router()
    answer = await router.ask(get("/healthz", headers={"origin": "https://app.example"}))
    assert answer.header("access-control-allow-origin") is None
