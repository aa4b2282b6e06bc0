"""Who waits for which model, how long waking takes, and the bells that call the loops early."""

from __future__ import annotations

from collections.abc import Collection

import anyio

from llmgw.clock import Clock
from llmgw.control.decide.snapshot import Wanted
from llmgw.domain.ids import ModelName

#: How much the newest measured start counts against those before.
_NEWEST = 0.5


class Bell:
    """Rung by stores, waited on by one loop. Ringing twice before it is heard is ringing once."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def ring(self) -> None:
        self._event.set()

    def is_rung(self) -> bool:
        """Return whether it was rung since it was last heard."""
        return self._event.is_set()

    def rung_nowait(self) -> bool:
        """Return whether it was rung since it was last heard, and hear it."""
        if not self._event.is_set():
            return False
        self._event = anyio.Event()
        return True

    async def wait_rung(self, clock: Clock, limit_s: float) -> bool:
        """Return True once it is rung, False after `limit_s`."""
        async with anyio.create_task_group() as group:

            async def give_up() -> None:
                await clock.sleep(limit_s)
                group.cancel_scope.cancel()

            group.start_soon(give_up)
            await self._event.wait()
            group.cancel_scope.cancel()
        return self.rung_nowait()


class Wake:
    """Somebody waits: noted once per model, however many do."""

    def __init__(self) -> None:
        self.wanted: dict[ModelName, Wanted] = {}
        self.wake_s: dict[ModelName, float] = {}
        self.changes = 0
        self.reconciler = Bell()
        self.publisher = Bell()

    def ring(self) -> None:
        """Something changed: both readers look early."""
        self.reconciler.ring()
        self.publisher.ring()

    def nudge(self, model: ModelName, *, now: float) -> None:
        """Note that somebody waits for the model now."""
        before = self.wanted.get(model)
        self.wanted[model] = Wanted(since=before.since if before else now, newest=now)
        if before is None:
            self.changes += 1
            self.ring()

    def keep(self, models: Collection[ModelName]) -> None:
        """Forget who waited for other models than these: for a new one of such a name nobody does."""
        self.wanted = {name: item for name, item in self.wanted.items() if name in models}
        self.wake_s = {name: item for name, item in self.wake_s.items() if name in models}

    def fulfil(self, models: Collection[ModelName]) -> None:
        """Nobody waits for these any more."""
        for model in models:
            if self.wanted.pop(model, None) is not None:
                self.changes += 1

    def measured(self, model: ModelName, seconds: float) -> None:
        """Note how long it took from the order until a replica was ready."""
        before = self.wake_s.get(model, seconds)
        self.wake_s[model] = before + (seconds - before) * _NEWEST
