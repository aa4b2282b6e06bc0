"""When to dial again, when to complain, and when the loop stood still."""

from __future__ import annotations

from random import Random

import anyio
import pytest

from llmgw_agent.node.link import LoopLag
from llmgw_agent.node.link.backoff import attempts_after, redial_delay_s
from llmgw_agent.node.link.status import Complaint


def test_the_wait_is_anything_up_to_a_limit_that_doubles_to_30_s() -> None:
    assert [redial_delay_s(attempt, 1.0) for attempt in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert redial_delay_s(10**6, 1.0) == 30
    assert redial_delay_s(3, 0.0) == 0


def test_a_thousand_agents_do_not_come_back_in_lockstep() -> None:
    random = Random(1)
    waits = sorted(redial_delay_s(3, random.random()) for _ in range(1000))
    per_second = [sum(1 for wait in waits if int(wait) == second) for second in range(8)]
    assert min(per_second) > 80
    assert max(per_second) < 170


def test_a_reason_is_said_when_it_is_new_and_then_once_a_minute() -> None:
    complaint = Complaint()
    assert complaint.is_due("no server", 0.0)
    assert not complaint.is_due("no server", 59.0)
    assert complaint.is_due("no server", 60.0)
    assert complaint.is_due("refused", 61.0)
    complaint.clear()
    assert complaint.is_due("refused", 62.0)


class StallingClock:
    """Sleeps for as long as asked, and once for longer: the loop stood still."""

    def __init__(self, stall_s: float) -> None:
        self._now = 0.0
        self._stall_s = stall_s
        self.sleeps = 0

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    async def sleep(self, delay_s: float) -> None:
        self.sleeps += 1
        self._now += delay_s + (self._stall_s if self.sleeps == 3 else 0.0)
        if self.sleeps > 5:
            await anyio.sleep_forever()


async def test_the_worst_stall_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    lag = LoopLag(StallingClock(0.4))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lag.run)
        await anyio.wait_all_tasks_blocked()
        assert lag.take_worst_ms() == pytest.approx(400)
        assert lag.take_worst_ms() == 0
        tasks.cancel_scope.cancel()
    assert [record.message for record in caplog.records] == ["event loop stood still"]


def test_a_session_that_outlasted_the_next_wait_clears_the_count() -> None:
    assert [attempts_after(3, up_s) for up_s in (0.0, 7.9, 8.0, 60.0)] == [3, 3, 0, 0]
    assert [attempts_after(50, up_s) for up_s in (59.0, 60.0)] == [50, 0]
    assert attempts_after(0, 0.0) == 0
