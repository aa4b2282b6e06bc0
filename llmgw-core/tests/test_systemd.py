"""What systemd hears of a process, over a real socket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from llmgw.systemd import Supervision, can_start_thread
from llmgw.testing.clock import FakeClock
from llmgw.testing.notified import NotifySocket

pytestmark = pytest.mark.anyio


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[NotifySocket]:
    with NotifySocket(tmp_path / "notify", watchdog_s=60) as listener:
        yield listener


async def test_a_loop_that_goes_round_is_heard_four_times_in_the_watchdogs_limit(
    systemd: NotifySocket, fake_clock: FakeClock
) -> None:
    supervision = Supervision(dict(systemd.env))
    async with anyio.create_task_group() as group:
        group.start_soon(supervision.keep_alive, fake_clock)
        await anyio.wait_all_tasks_blocked()
        assert systemd.heard() == ["READY=1", "WATCHDOG=1"]
        for _ in range(4):
            await fake_clock.advance(15)
        assert systemd.heard() == ["WATCHDOG=1"] * 4
        group.cancel_scope.cancel()


async def test_a_process_that_is_not_well_gives_no_sign_until_it_is(
    systemd: NotifySocket, fake_clock: FakeClock
) -> None:
    well = [False]
    supervision = Supervision(dict(systemd.env))
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: supervision.keep_alive(fake_clock, is_well=lambda: well[0]))
        await anyio.wait_all_tasks_blocked()
        await fake_clock.advance(60)
        assert systemd.heard() == ["READY=1"]
        well[0] = True
        await fake_clock.advance(15)
        assert systemd.heard() == ["WATCHDOG=1"]
        group.cancel_scope.cancel()


async def test_children_do_not_inherit_what_is_meant_for_their_parent(
    systemd: NotifySocket,
) -> None:
    given = {"PATH": "/bin", **systemd.env, "WATCHDOG_PID": str(os.getpid())}
    Supervision(given)
    assert given == {"PATH": "/bin"}


@pytest.mark.parametrize("more", [{"WATCHDOG_USEC": ""}, {"WATCHDOG_PID": "1"}])
async def test_without_a_watchdog_of_its_own_it_says_that_it_serves_and_no_more(
    systemd: NotifySocket, fake_clock: FakeClock, more: dict[str, str]
) -> None:
    await Supervision({**systemd.env, **more}).keep_alive(fake_clock)
    assert systemd.heard() == ["READY=1"]


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "@nobody-listens-here"])
async def test_without_systemd_nothing_happens(fake_clock: FakeClock, address: str) -> None:
    await Supervision({"NOTIFY_SOCKET": address}).keep_alive(fake_clock)


def test_a_thread_can_be_started_here() -> None:
    assert can_start_thread()
