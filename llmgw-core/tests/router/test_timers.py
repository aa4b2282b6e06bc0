"""Deadlines that move with nearly every event, on one wheel."""

from __future__ import annotations

from functools import partial

import anyio
import anyio.lowlevel
import pytest

from llmgw.router.timers import NEVER, TICK_S, Deadline, TimerWheel
from llmgw.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def wheel(clock: FakeClock) -> TimerWheel:
    return TimerWheel(clock)


async def turn_to(wheel: TimerWheel, clock: FakeClock, seconds: float) -> None:
    """Move time on by whole ticks, turning at each."""
    for _ in range(int(seconds / TICK_S)):
        await clock.advance(TICK_S)
        wheel.turn()


async def test_a_deadline_expires_once_and_at_most_a_tick_late(
    wheel: TimerWheel, clock: FakeClock
) -> None:
    expired: list[float] = []
    start = clock.monotonic()
    Deadline(wheel, lambda: expired.append(clock.monotonic() - start)).set(3.0)
    await turn_to(wheel, clock, 10.0)
    assert len(expired) == 1
    assert 3.0 <= expired[0] <= 3.0 + 2 * TICK_S


async def test_a_deadline_that_is_moved_on_expires_at_its_last_time(
    wheel: TimerWheel, clock: FakeClock
) -> None:
    expired: list[float] = []
    deadline = Deadline(wheel, lambda: expired.append(clock.monotonic()))
    deadline.set(1.0)
    for _ in range(20):
        await turn_to(wheel, clock, 0.5)
        deadline.due = wheel.now + 1.0
    assert not expired
    await turn_to(wheel, clock, 2.0)
    assert len(expired) == 1


async def test_a_deadline_may_be_moved_forward(wheel: TimerWheel, clock: FakeClock) -> None:
    expired: list[int] = []
    deadline = Deadline(wheel, lambda: expired.append(1))
    deadline.set(75.0)
    deadline.set(1.0)
    await turn_to(wheel, clock, 2.0)
    assert expired == [1]


@pytest.mark.parametrize("how", ["cancel", "never"])
async def test_a_deadline_that_was_called_off_does_not_expire(
    wheel: TimerWheel, clock: FakeClock, how: str
) -> None:
    expired: list[int] = []
    deadline = Deadline(wheel, lambda: expired.append(1))
    deadline.set(1.0)
    if how == "cancel":
        deadline.cancel()
    else:
        deadline.due = NEVER
    await turn_to(wheel, clock, 5.0)
    assert not expired
    deadline.set(1.0)
    await turn_to(wheel, clock, 2.0)
    assert expired == [1]


async def test_one_that_fails_does_not_stop_the_others(wheel: TimerWheel, clock: FakeClock) -> None:
    expired: list[int] = []

    def fail() -> None:
        raise RuntimeError("a bug")

    Deadline(wheel, fail).set(1.0)
    Deadline(wheel, lambda: expired.append(1)).set(1.0)
    await turn_to(wheel, clock, 2.0)
    assert expired == [1]


@pytest.mark.parametrize("stall_s", [10.0, 3600.0])
async def test_time_in_which_the_process_stood_still_is_not_counted(
    wheel: TimerWheel, clock: FakeClock, stall_s: float
) -> None:
    expired: list[str] = []
    old, new = (Deadline(wheel, partial(expired.append, name)) for name in ("old", "new"))
    old.set(5.0)
    await turn_to(wheel, clock, 3.0)
    await clock.advance(stall_s)
    # What waited in the kernel is read before the wheel turns.
    new.set(3.0)
    wheel.turn()
    assert not expired
    await turn_to(wheel, clock, 1.0)
    assert not expired
    await turn_to(wheel, clock, 1.0)
    assert expired == ["old"]
    await turn_to(wheel, clock, 1.0)
    assert expired == ["old", "new"]


async def test_a_loop_that_is_only_busy_turns_late_and_loses_no_time(
    wheel: TimerWheel, clock: FakeClock
) -> None:
    expired: list[float] = []
    start = clock.monotonic()
    Deadline(wheel, lambda: expired.append(clock.monotonic() - start)).set(10.0)
    for _ in range(40):
        await clock.advance(0.4)
        wheel.turn()
    assert len(expired) == 1
    assert 10.0 <= expired[0] <= 11.0


async def test_a_crowd_that_is_due_at_once_lets_others_run_in_between(
    wheel: TimerWheel, clock: FakeClock
) -> None:
    expired: list[int] = []
    for number in range(500):
        Deadline(wheel, partial(expired.append, number)).set(1.0)
    moved = Deadline(wheel, partial(expired.append, -1))
    moved.set(1.0)
    seen: set[int] = set()

    async def others() -> None:
        while len(expired) < 500:
            seen.add(len(expired))
            moved.set(5.0)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        await tasks.start(wheel.run)
        tasks.start_soon(others)
        while len(expired) < 500:
            await clock.advance(TICK_S)
        tasks.cancel_scope.cancel()
    assert len(seen) > 10
    assert sorted(expired) == list(range(500))
