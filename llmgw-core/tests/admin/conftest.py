"""The admin application over a real store, called in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.admin.app import build_admin
from llmgw.admin.parts import AdminParts
from llmgw.domain.secret import Secret
from llmgw.store import Store, open_store
from llmgw.testing.clock import FakeClock

TOKEN = "the-operator's-own"

MakeParts = Callable[..., AdminParts]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    opened = open_store(None, state_dir=tmp_path, clock=clock)
    opened.leases.acquire("here")
    yield opened
    opened.close()


@pytest.fixture
def parts(store: Store, clock: FakeClock) -> AdminParts:
    return AdminParts(token=Secret(TOKEN), clock=clock, server="s1", store=store)


@pytest.fixture
async def connect(parts: AdminParts) -> AsyncIterator[Callable[..., Awaitable[httpx.AsyncClient]]]:
    """Make clients of the application; `token=None` sends none."""
    clients: list[httpx.AsyncClient] = []

    async def client(
        token: str | None = TOKEN, *, address: str = "127.0.0.1", **headers: str
    ) -> httpx.AsyncClient:
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        transport = httpx.ASGITransport(build_admin(parts), client=(address, 1))
        made = httpx.AsyncClient(
            transport=transport, base_url="http://localhost:8081/admin/v1", headers=headers
        )
        clients.append(made)
        return made

    yield client
    for made in clients:
        await made.aclose()


@pytest.fixture
async def admin(connect: Any) -> httpx.AsyncClient:
    """A client with the operator's token."""
    client: httpx.AsyncClient = await connect()
    return client
