"""Writes of one turn of the event loop."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from llmgw.router.outbox import Outbox

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Wire:
    """A transport that notes what is written, all of them in one list."""

    def __init__(self, written: list[tuple[str, bytes]], name: str) -> None:
        self._written = written
        self._name = name
        self.is_ended = False

    def is_closing(self) -> bool:
        return self.is_ended

    def write(self, data: bytes) -> None:
        self._written.append((self._name, data))


async def test_what_one_turn_writes_goes_out_in_order_before_the_loop_waits() -> None:
    written: list[tuple[str, bytes]] = []
    one, other = (cast(Any, Wire(written, name)) for name in ("one", "other"))
    outbox = Outbox()
    outbox.write(one, b"1")
    outbox.write(other, b"2")
    outbox.write(one, b"3")
    assert not written
    await asyncio.sleep(0)
    assert written == [("one", b"1"), ("other", b"2"), ("one", b"3")]
    outbox.write(other, b"4")
    await asyncio.sleep(0)
    assert written[3:] == [("other", b"4")]


async def test_a_connection_that_ended_is_passed_over() -> None:
    written: list[tuple[str, bytes]] = []
    gone, there = Wire(written, "gone"), Wire(written, "there")
    outbox = Outbox()
    outbox.write(cast(Any, gone), b"1")
    outbox.write(cast(Any, there), b"2")
    gone.is_ended = True
    await asyncio.sleep(0)
    assert written == [("there", b"2")]


async def test_who_is_nearly_alone_does_not_wait() -> None:
    written: list[tuple[str, bytes]] = []
    one = cast(Any, Wire(written, "one"))
    outbox = Outbox()
    outbox.write(one, b"first")
    await asyncio.sleep(0)
    outbox.write(one, b"second")
    assert written == [("one", b"first"), ("one", b"second")]


async def test_a_crowd_waits_turn_after_turn() -> None:
    written: list[tuple[str, bytes]] = []
    one = cast(Any, Wire(written, "one"))
    outbox = Outbox()
    for turn in range(3):
        for _ in range(8):
            outbox.write(one, b"%d" % turn)
        assert len(written) == 8 * turn
        await asyncio.sleep(0)
    assert len(written) == 24


async def test_a_write_that_fails_keeps_no_other_back() -> None:
    class Ended(Wire):
        def write(self, data: bytes) -> None:
            raise RuntimeError("after the end")

    written: list[tuple[str, bytes]] = []
    outbox = Outbox()
    outbox.write(cast(Any, Ended(written, "ended")), b"1")
    outbox.write(cast(Any, Wire(written, "there")), b"2")
    await asyncio.sleep(0)
    assert written == [("there", b"2")]


async def test_who_cannot_wait_for_the_turn_to_end_flushes() -> None:
    written: list[tuple[str, bytes]] = []
    outbox = Outbox()
    outbox.write(cast(Any, Wire(written, "one")), b"1")
    outbox.flush()
    assert written == [("one", b"1")]
    await asyncio.sleep(0)
    assert len(written) == 1
