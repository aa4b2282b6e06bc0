"""A router on a socket, in front of whatever endpoints a test gives it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import anyio
import pytest
import uvicorn

from llmgw.config.server import Deadlines, RouterSettings
from llmgw.domain.endpoints import Endpoint, ModelStatus
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.router.app import Router
from llmgw.router.balancers import llmgw_balancers
from llmgw.testing.eventually import eventually
from llmgw.testing.raw_http import RawAnswer, connect, post


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class RunningRouter:
    """A router that serves on a port of its own."""

    router: Router
    port: int
    server: uvicorn.Server
    access: BytesIO

    async def ask(self, request: bytes) -> RawAnswer:
        """Send one request on a connection of its own; return its answer."""
        async with connect(self.port) as connection:
            connection.send(request)
            return await connection.answer()

    async def chat(self, **fields: Any) -> RawAnswer:
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **fields}
        return await self.ask(post("/v1/chat/completions", body))

    @property
    def in_flight(self) -> int:
        return sum(state.in_flight for state in self.router.selector.states())

    async def settled(self) -> None:
        """Return once nothing is in flight any more."""
        await eventually(lambda: not self.in_flight)


StartRouter = Callable[..., Any]


def endpoint(url: str, *, name: str = "e1", **more: Any) -> Endpoint:
    models = more.pop("models", (ModelName("demo"),))
    return Endpoint(id=EndpointId(name), url=url, models=models, **{"health_path": None, **more})


@pytest.fixture
def make_endpoint() -> Callable[..., Endpoint]:
    """Return an endpoint of model `demo` at a URL."""
    return endpoint


@pytest.fixture
def quick() -> Callable[..., RouterSettings]:
    """Return router settings with these deadlines."""

    def settings(**deadlines: float) -> RouterSettings:
        return RouterSettings(deadlines=Deadlines(**deadlines))

    return settings


@pytest.fixture
async def start_router() -> AsyncIterator[StartRouter]:
    """Return a function that starts routers; all are stopped at the end of the test."""
    async with AsyncExitStack() as stack:

        async def start(
            *urls: str,
            endpoints: Sequence[Endpoint] = (),
            models: Sequence[ModelStatus] = (),
            settings: RouterSettings | None = None,
            **more: Any,
        ) -> RunningRouter:
            named = [endpoint(url, name=f"e{index}") for index, url in enumerate(urls, 1)]
            return await stack.enter_async_context(
                _running((*named, *endpoints), models, settings or RouterSettings(), more)
            )

        yield start


@asynccontextmanager
async def _running(
    endpoints: Sequence[Endpoint],
    models: Sequence[ModelStatus],
    settings: RouterSettings,
    more: dict[str, Any],
) -> AsyncIterator[RunningRouter]:
    access = BytesIO()
    router = Router(
        settings,
        balancers={factory.name: factory for factory in llmgw_balancers()},
        access_stream=access,
        **more,
    )
    router.publish_catalog(tuple(models), Epoch(1))
    router.publish_endpoints(tuple(endpoints), Epoch(1))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    server = uvicorn.Server(
        uvicorn.Config(
            router.asgi,
            http=router.protocol,  # type: ignore[arg-type]  # any callable serves
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
        )
    )
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    async with anyio.create_task_group() as tasks:
        await tasks.start(router.run)
        await server.startup(sockets=[listener])
        await server.on_tick(0)
        try:
            yield RunningRouter(router, listener.getsockname()[1], server, access)
        finally:
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            for accepting in server.servers:
                accepting.close()
            await asyncio.sleep(0)
            listener.close()
            tasks.cancel_scope.cancel()
