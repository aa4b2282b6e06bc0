"""What all tests of the agent share: one event loop."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_event_loop(anyio_backend: str) -> None:
    """Run every test on one event loop.

    gRPC has one poller in a process, and it wakes the loop that it last served: with a loop for
    each test it would now and then wake one that is closed, and fail the test after.
    """
