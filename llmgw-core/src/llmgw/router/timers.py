"""One timer wheel for all deadlines of a router.

A deadline moves with nearly each event of a request. Moving it later is one attribute
write here; the wheel notices when it comes by. A `call_later` per event would cost more
than the event itself.

The wheel counts the time in which the process ran, and not the clock's. While it stood still, for
want of a processor or because somebody stopped it, nobody could be heard: a client whose bytes
wait in the kernel must not be cut for a silence that was ours.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import anyio.lowlevel
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.logs import get_logger

log = get_logger(__name__)

TICK_S = 0.25
_AT_ONCE = 16
"""Ending a connection takes some 50 µs. Of a thousand that came together and are cut together, nobody
else's stream shall feel more than a millisecond at a time."""
NEVER = math.inf
_LONGEST_TURN_S = 0.5
"""Of the time since the last turn, so much is counted at most. A loop that is merely busy turns
every 0.3 s; what is longer is a standstill."""


class Deadline:
    """Calls `expired` once it is due, up to one tick late; then it rests until set again."""

    __slots__ = ("_slot", "_wheel", "due", "expired")

    def __init__(self, wheel: TimerWheel, expired: Callable[[], None]) -> None:
        self._wheel = wheel
        self._slot = -1
        self.due = NEVER
        self.expired = expired

    def set(self, delay_s: float) -> None:
        """Be due `delay_s` from now; NEVER: not at all."""
        self.due = due = self._wheel.now + delay_s
        # An earlier look than needed is harmless: the wheel puts the deadline back.
        if due < NEVER and not 0 <= self._slot <= due / TICK_S:
            self._wheel.put(self)

    def cancel(self) -> None:
        """Never be due; keeps nothing of it in the wheel."""
        self.due = NEVER
        self._wheel.drop(self)

    def end(self) -> None:
        """Never be due again, and hold on to nobody."""
        self.cancel()
        self.expired = _nobody


def _nobody() -> None:
    """Nobody is called any more."""


class TimerWheel:
    """Holds deadlines in slots of one tick."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[int, set[Deadline]] = {}
        self._turned_at = clock.monotonic()
        self.now = 0.0  #: seconds that it has run, at most a tick behind; compared with no clock
        self._turned = 0

    def put(self, deadline: Deadline) -> None:
        """File a deadline under its due time."""
        self.drop(deadline)
        slot = max(math.ceil(deadline.due / TICK_S), self._turned + 1)
        deadline._slot = slot
        self._slots.setdefault(slot, set()).add(deadline)

    def drop(self, deadline: Deadline) -> None:
        """Forget a deadline."""
        if deadline._slot >= 0:
            filed = self._slots.get(deadline._slot)
            if filed is not None:
                filed.discard(deadline)
            deadline._slot = -1

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Turn until cancelled."""
        task_status.started()
        while True:
            await self._clock.sleep(TICK_S)
            for count, _ in enumerate(self._turn(), start=1):
                if count % _AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()

    def turn(self) -> None:
        """Call what has become due since the last turn, all of it at once."""
        for _ in self._turn():
            pass

    def _turn(self) -> Iterator[None]:
        """Likewise, with a pause after each look at one of them."""
        now = self._clock.monotonic()
        self.now += min(now - self._turned_at, _LONGEST_TURN_S)
        self._turned_at = now
        upto = int(self.now / TICK_S)
        passed, self._turned = range(self._turned + 1, upto + 1), upto
        for slot in passed:
            for deadline in self._slots.pop(slot, ()):
                if deadline._slot == slot:  # else it has been called off or moved in a pause
                    deadline._slot = -1
                    self._look_at(deadline)
                    yield

    def _look_at(self, deadline: Deadline) -> None:
        if deadline.due > self.now:
            if deadline.due < NEVER:
                self.put(deadline)
            return
        deadline.due = NEVER
        try:
            deadline.expired()
        except Exception:
            # One request's bug must not stop every other request's time-outs.
            log.exception("deadline failed")


@asynccontextmanager
async def within(wheel: TimerWheel, limit_s: float) -> AsyncIterator[None]:
    """Raise TimeoutError once the block has taken so long of the wheel's time, up to a tick late.

    After a standstill a timer of the event loop comes before the answers that waited in the
    kernel meanwhile: it would blame them for a time that was ours.
    """
    async with asyncio.timeout(None) as limit:
        deadline = Deadline(wheel, lambda: limit.reschedule(asyncio.get_running_loop().time()))
        deadline.set(limit_s)
        try:
            yield
        finally:
            deadline.end()
