"""A whole server in the test's own event loop, on loopback ports, with nodes in memory.

async with running_server(tmp_path, models=[…]) as server:
    server.nodes.join(inventory("n1"))
    ...
    answer = await server.api.post("/v1/chat/completions", json=…)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx

from llmgw import hookimpl
from llmgw.clock import Clock, SystemClock
from llmgw.config.loading import Loaded, load_server
from llmgw.control import builtins
from llmgw.domain.secret import Secret
from llmgw.plugins import FoundPlugin, Registry, load_registry
from llmgw.router import balancers
from llmgw.server.app import Server, Serving
from llmgw.server.standalone import RouterServing, StandaloneRouter
from llmgw.testing.dispatch import MemoryDispatcher
from llmgw.testing.fake_adapter import FakeEngineAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that serves, and clients of its listeners."""

    server: Server
    serving: Serving
    state_dir: Path
    nodes: MemoryDispatcher
    api: httpx.AsyncClient
    admin: httpx.AsyncClient  #: carries the operator's token


def registry_of_fakes(dispatcher: MemoryDispatcher | None = None) -> Registry:
    """Return core's own plugins with the fake engine and, instead of gRPC, nodes in memory."""
    parts: dict[str, Callable[[], object]] = {
        "balancers": lambda: balancers,
        "control": lambda: builtins,
        "fake": lambda: _fakes(dispatcher),
    }
    return load_registry(
        FoundPlugin(distribution="llmgw-core", version="0", entry=entry, load=load)
        for entry, load in parts.items()
    )


def _fakes(dispatcher: MemoryDispatcher | None) -> object:
    @hookimpl
    def llmgw_engine_adapters() -> list[object]:
        return [FakeEngineAdapter()]

    @hookimpl
    def llmgw_dispatchers() -> list[object]:
        return [] if dispatcher is None else [dispatcher]

    return SimpleNamespace(
        llmgw_engine_adapters=llmgw_engine_adapters, llmgw_dispatchers=llmgw_dispatchers
    )


@asynccontextmanager
async def running_server(
    state_dir: Path,
    *,
    config: Path | None = None,
    clock: Clock | None = None,
    may_empty: bool = False,
    **settings: Any,
) -> AsyncIterator[RunningServer]:
    """Run a server until the block ends, then stop it in order.

    config: a file that it follows. settings: top-level settings over the file, e.g. `models`.
    """
    nodes = MemoryDispatcher()
    registry = registry_of_fakes(nodes)
    free: Mapping[str, str] = {
        "listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "agent_listen": "127.0.0.1:0",
        "state_dir": str(state_dir),
        "control.dispatcher": nodes.name,
    }

    def load() -> Loaded:
        return load_server(config, {}, {**free, **settings}, installed=registry.installed)

    server = Server(load(), registry, clock=clock or SystemClock(), load=load, may_empty=may_empty)
    async with anyio.create_task_group() as tasks:
        serving: Serving = await tasks.start(server.run)
        token = (state_dir / "admin.token").read_text().strip()
        async with (
            _client(f"http://{serving.api}") as api,
            _client(f"http://{serving.admin}", token) as admin,
        ):
            yield RunningServer(
                server=server,
                serving=serving,
                state_dir=state_dir,
                nodes=nodes,
                api=api,
                admin=admin,
            )
        server.stop()


@asynccontextmanager
async def running_router(
    state_dir: Path, servers: str, token: str, **settings: Any
) -> AsyncIterator[tuple[RouterServing, httpx.AsyncClient]]:
    """Run a stand-alone router until the block ends; yield where it answers and a client of it.

    servers: URLs of admin listeners, separated by commas, which token opens.
    """
    registry = registry_of_fakes()
    flags: Mapping[str, Any] = {
        "listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "state_dir": str(state_dir),
        **settings,
    }
    router = StandaloneRouter(
        load_server(None, {}, flags, needs_work=False),
        servers=servers.split(","),
        token=Secret(token),
        balancers=registry.balancers,
        engines=registry.engines,
        clock=SystemClock(),
    )
    async with anyio.create_task_group() as tasks:
        serving: RouterServing = await tasks.start(router.run)
        async with _client(f"http://{serving.api}") as client:
            yield serving, client
        router.stop()


def _client(url: str, token: str | None = None) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=10.0)
