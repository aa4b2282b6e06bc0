"""Control first, reports after it, and neither without end."""

from __future__ import annotations

import anyio
import pytest

from llmgw_agent.wire.lanes import MAX_CONTROL, Lanes, LanesFull


async def test_control_overtakes_reports() -> None:
    lanes = Lanes()
    await lanes.put_report((b"report",))
    lanes.put_nowait((b"control",))
    assert [await lanes.get(), await lanes.get()] == [(b"control",), (b"report",)]


async def test_a_report_waits_for_room() -> None:
    lanes = Lanes()
    sent: list[int] = []

    async def report() -> None:
        for number in range(12):
            await lanes.put_report((b"%d" % number,))
            sent.append(number)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(report)
        await anyio.wait_all_tasks_blocked()
        assert len(sent) == 8
        received = [await lanes.get() for _ in range(12)]
    assert received == [(b"%d" % number,) for number in range(12)]


async def test_a_peer_that_reads_nothing_is_noticed() -> None:
    lanes = Lanes()
    for _ in range(MAX_CONTROL):
        lanes.put_nowait((b"",))
    with pytest.raises(LanesFull):
        lanes.put_nowait((b"",))


async def test_a_closed_queue_is_read_to_its_end() -> None:
    lanes = Lanes()
    lanes.put_nowait((b"last",))
    lanes.close()
    assert [await lanes.get(), await lanes.get()] == [(b"last",), None]


async def test_closing_wakes_a_reader_that_waits() -> None:
    lanes = Lanes()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lanes.get)
        await anyio.wait_all_tasks_blocked()
        lanes.close()
