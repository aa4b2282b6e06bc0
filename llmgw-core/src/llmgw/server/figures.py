"""Keeps what replicas were seen to take, so that the next server need not estimate it again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import anyio
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.control.plane import ControlPlane
from llmgw.errors import NotLeader, StoreUnavailable
from llmgw.store import Store

EVERY_S = 60.0
_FIGURE = "memory_mib"


class FigureKeeper:
    """Brings learned memory from the store to the control plane at the start, and back."""

    def __init__(self, store: Store, plane: ControlPlane, clock: Clock) -> None:
        self._store = store
        self._plane = plane
        self._clock = clock
        self._kept: Mapping[str, float] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep for ever; started once the control plane knows what is in the store."""
        await self.recall()
        task_status.started()
        while True:
            await self._clock.sleep(EVERY_S)
            await self.keep()

    async def recall(self) -> None:
        """Tell the control plane what was learned before. A store that is away tells nothing."""
        try:
            figures = await self._store.run(self._store.learned.all)
        except StoreUnavailable:
            return  # whoever watches the store says so; an estimate does meanwhile
        self._kept = {key: item[_FIGURE] for key, item in figures.items() if _FIGURE in item}
        self._plane.know_memory(self._kept)

    async def keep(self) -> None:
        """Write what has changed. Another server's figures are its own to write."""
        learned = self._plane.learned
        changed = {key: mib for key, mib in learned.items() if self._kept.get(key) != mib}
        if not changed:
            return
        rows = {key: {_FIGURE: mib} for key, mib in changed.items()}
        try:
            await self._store.run(partial(self._store.learned.put, rows))
        except (NotLeader, StoreUnavailable):
            return  # the next turn has them all
        self._kept = learned
