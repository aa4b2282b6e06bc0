"""A request that nobody acknowledges is given up long before its answer is due."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from llmgw.domain.endpoints import Endpoint
from llmgw.router.outbox import Outbox
from llmgw.router.pool import EngineConnection

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_kernel_gives_up_bytes_to_an_engine_after_five_seconds(
    make_endpoint: Callable[..., Endpoint],
) -> None:
    """F12; that this is enough is tried with packets that vanish, in the chaos suite."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as engine:
        connection = EngineConnection(make_endpoint("http://e"), lambda *_: None, Outbox())
        transport, _ = await loop.create_connection(lambda: connection, *engine.getsockname())
        own = transport.get_extra_info("socket")
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5_000
        transport.abort()
        await asyncio.sleep(0)  # the transport closes its socket in the loop's next turn
