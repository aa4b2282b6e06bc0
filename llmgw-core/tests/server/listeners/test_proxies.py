"""A proxy in the environment is for downloads: no call between our own parts goes to it.

That these listeners have a table at all shows the router's feed; how engines' health is looked at
is tried in tests/router/pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llmgw.testing.raw_http import get

pytestmark = pytest.mark.anyio

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "grpc_proxy")
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def settings() -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.setenv(name, NOBODY)
            patch.setenv(name.lower(), NOBODY)
        for name in ("NO_PROXY", "no_proxy"):
            patch.delenv(name, raising=False)
        yield {"auth": {"api_keys": "on"}}


async def test_c010_engines_are_asked_directly(listeners: Any, serving: str) -> None:
    assert (await listeners.chat(serving)).status == 200
    assert len(listeners.engine.requests) == 1


@pytest.mark.parametrize(("name", "path"), [("admin", "/metrics"), ("router admin", "/healthz")])
async def test_c010_admin_listeners_answer(listeners: Any, name: str, path: str) -> None:
    headers = {"host": "127.0.0.1", **listeners.admin_auth}
    assert (await listeners.ask(name, get(path, headers=headers))).status == 200
