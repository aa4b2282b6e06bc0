"""The four listeners that clients can reach: a server's two, and a stand-alone router's two.

What holds on one holds on every listener, as far as it has it. The cases are those of
docs/cases.md; how each is met is tried in detail in tests/router.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmgw.config.addresses import Address
from llmgw.testing.cluster import running_router, running_server
from llmgw.testing.engine_script import Script, ScriptedEngine
from llmgw.testing.raw_http import RawAnswer, connect, post

CHAT = "/v1/chat/completions"
SERVING = ("api", "router")
ADMIN = ("admin", "router admin")
ORIGIN = "https://app.example"
SETTINGS: dict[str, Any] = {
    "auth": {"api_keys": "on"},
    "router": {
        "deadlines": {
            "request_head": 0.5,
            "request_body_idle": 0.5,
            "first_byte_min": 1.0,
            "first_byte_max": 1.0,
            "between_chunks": 0.5,
            "client_stalled": 0.6,
        },
        "queue": {"length": 2},
        "body_limit_mib": 0.01,
        "cors_origins": [ORIGIN],
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Where to send, the engines behind, and what opens the API.

    Model `demo` and `acme/tiny-7b:q4` run on `engine`; `pair` on it and, preferred, on `other`;
    `small` on `other` alone, one request at a time.
    """

    engine: ScriptedEngine
    other: ScriptedEngine
    ports: dict[str, int]
    auth: dict[str, str]
    admin_auth: dict[str, str]
    home: Path

    async def ask(self, name: str, request: bytes) -> RawAnswer:
        async with connect(self.ports[name]) as client:
            client.send(request)
            return await client.answer()

    async def chat(self, name: str, **fields: Any) -> RawAnswer:
        body = {"model": "demo", "messages": [], **fields}
        return await self.ask(name, post(CHAT, body, headers=self.auth))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Here so that one set of listeners serves all tests of a module."""
    return "asyncio"


@pytest.fixture(params=SERVING)
def serving(request: pytest.FixtureRequest) -> str:
    """Each listener that serves models, by name."""
    name: str = request.param
    return name


@pytest.fixture(params=(*SERVING, *ADMIN))
def listener(request: pytest.FixtureRequest) -> str:
    """Each listener, by name."""
    name: str = request.param
    return name


@pytest.fixture
def listeners(running: Listeners) -> Listeners:
    """The listeners, with engines that have seen nothing yet."""
    for engine in (running.engine, running.other):
        engine.requests.clear()
        engine.bytes_written = 0
        engine.script = Script.plain({"choices": []})
        engine.choose = None
    return running


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """Of both processes; a module may have its own."""
    return SETTINGS


@pytest.fixture(scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]
) -> AsyncIterator[Listeners]:
    home = tmp_path_factory.mktemp("listeners")
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(ScriptedEngine())
        other = await stack.enter_async_context(ScriptedEngine())
        server = await stack.enter_async_context(
            running_server(home / "server", endpoints=_endpoints(engine, other), **settings)
        )
        token = server.admin.headers["Authorization"].removeprefix("Bearer ")
        made = await server.admin.post("/admin/v1/keys", json={"name": "all"})
        auth = {"authorization": f"Bearer {made.json()['secret']}"}
        router, client = await stack.enter_async_context(
            running_router(home / "router", f"http://{server.serving.admin}", token, **settings)
        )
        with anyio.fail_after(8):
            # It has no event for us: its table comes from the server, over a socket.
            while not (await client.get("/v1/models", headers=auth)).json().get("data"):  # noqa: ASYNC110
                await anyio.sleep(0.02)
        addresses: dict[str, Address] = {
            "api": server.serving.api,
            "admin": server.serving.admin,
            "router": router.api,
            "router admin": router.admin,
        }
        yield Listeners(
            engine=engine,
            other=other,
            ports={name: address.port for name, address in addresses.items()},
            auth=auth,
            home=home,
            admin_auth={"authorization": f"Bearer {token}"},
        )


def _endpoints(engine: ScriptedEngine, other: ScriptedEngine) -> list[dict[str, Any]]:
    def endpoint(id_: str, at: ScriptedEngine, *models: str, **more: Any) -> dict[str, Any]:
        return {"id": id_, "url": at.url, "models": models, "health_path": None, **more}

    return [
        endpoint("e1", engine, "demo"),
        endpoint("e2", engine, "acme/tiny-7b:q4"),
        endpoint("e3", engine, "pair"),
        endpoint("e4", other, "pair", priority=1),
        endpoint("e5", other, "small", max_inflight=1),
    ]


@pytest.fixture
def head() -> Callable[..., bytes]:
    """Return a function that writes the head of a POST, line by line."""

    def write(*lines: str, path: str = CHAT) -> bytes:
        return "\r\n".join((f"POST {path} HTTP/1.1", *lines, "", "")).encode()

    return write
