"""Waiting for whichever comes first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

_T = TypeVar("_T")


async def first_of(*contenders: Callable[[], Awaitable[_T]]) -> _T:
    """Return the first result and cancel the rest. Of two at the same time the earlier listed wins."""
    results: dict[int, _T] = {}

    async def run(place: int, contender: Callable[[], Awaitable[_T]]) -> None:
        results[place] = await contender()
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for place, contender in enumerate(contenders):
            group.start_soon(run, place, contender)
    return results[min(results)]
