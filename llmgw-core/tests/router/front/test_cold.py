"""Requests that the ASGI application answers, and clients that do not wait for it."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from llmgw.router.front.cold import ColdCycle
from llmgw.router.ingress import Request

pytestmark = pytest.mark.anyio


class Gone:
    """A client that has left: whoever writes to it has missed that."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"{name} of a client that left")


@pytest.mark.parametrize("wrong", [None, ValueError("a fault of ours")])
async def test_a_client_that_left_is_no_error_in_the_log_but_a_fault_of_ours_is(
    wrong: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(scope: object, receive: object, send: Any) -> None:
        cycle.client_left()
        if wrong is not None:
            raise wrong
        await send({"type": "http.response.start", "status": 200, "headers": []})

    cycle = ColdCycle(Gone(), answer, Request(), {})
    await cycle.run(None)
    assert [record.levelname for record in caplog.records] == (["ERROR"] if wrong else [])
