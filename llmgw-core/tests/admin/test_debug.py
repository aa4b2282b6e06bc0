"""A look into the running process."""

from __future__ import annotations

import importlib.util

import anyio
import httpx
import pytest

from llmgw.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


async def test_the_process_is_profiled_or_the_package_that_does_it_is_named(
    admin: httpx.AsyncClient, clock: FakeClock
) -> None:
    async def let_time_pass() -> None:
        while True:
            await clock.advance(1.0)
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(let_time_pass)
        answer = await admin.get("/debug/profile?seconds=2")
        tasks.cancel_scope.cancel()
    if importlib.util.find_spec("pyinstrument") is None:
        assert answer.status_code == 501
        assert "pip install 'llmgw-core[debug]'" in answer.text
    else:
        assert answer.status_code == 200
        assert "Duration" in answer.text


async def test_a_profile_without_end_is_refused(admin: httpx.AsyncClient) -> None:
    answer = await admin.get("/debug/profile?seconds=86400")
    assert answer.status_code == 400
    assert "seconds" in answer.text


async def test_the_tasks_of_the_process_are_dumped(admin: httpx.AsyncClient) -> None:
    answer = await admin.get("/debug/tasks")
    assert "Stack for" in answer.text
    assert answer.text.count("Task") > 1
