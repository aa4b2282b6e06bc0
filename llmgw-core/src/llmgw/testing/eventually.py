"""Waiting for what real sockets bring about at a time of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Return once the condition holds. Raises TimeoutError if it does not in time."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  # the other side is the kernel: it sets no event
            await asyncio.sleep(0.002)
