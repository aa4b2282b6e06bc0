"""Writes down what the next server should know: which nodes there are, and that a fence is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.control.decide.snapshot import NodeRecord
from llmgw.control.loops.leadership import GRACE_S
from llmgw.control.observe import Stores
from llmgw.domain.ids import NodeId
from llmgw.errors import LlmgwError
from llmgw.logs import get_logger

log = get_logger(__name__)

#: New nodes are written soon, since the next start waits for those it knows; signs of life in
#: batches, since nobody needs them to the second.
LOOK_EVERY_S = 2.0
ALL_EVERY_S = 60.0


class NodeBook(Protocol):
    """Where known nodes outlive a server. Raises StoreUnavailable or NotLeader."""

    async def record_seen(self, nodes: Sequence[NodeRecord]) -> None:
        """Note that these have shown a sign of life; all have an inventory."""
        ...

    async def unfence(self, node: NodeId) -> None:
        """It has come back and said what runs there."""
        ...


class Keeper:
    """Only the leader writes; a store that is away costs nobody anything but the next start."""

    def __init__(self, stores: Stores, book: NodeBook, clock: Clock) -> None:
        self._stores = stores
        self._book = book
        self._clock = clock
        self._written: Mapping[NodeId, str] = {}
        self._all_at = 0.0
        self._failed = False

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the book until cancelled."""
        task_status.started()
        while True:
            await self.write_once()
            await self._clock.sleep(LOOK_EVERY_S)

    async def write_once(self) -> None:
        """Write what is new, or everything if it is time."""
        now = self._clock.monotonic()
        if self._stores.leadership.lease(now) is None:
            return
        connected = [
            record
            for record in self._stores.inventory.nodes.values()
            if record.session is not None and record.inventory is not None
        ]
        every = now >= self._all_at
        due = [item for item in connected if every or self._written.get(item.id) != item.session]
        try:
            if due:
                await self._book.record_seen(due)
            for node in self._stores.inventory.unfenced():
                await self._book.unfence(node)
                self._stores.inventory.fence_is_over(node)
        except LlmgwError as error:
            if not self._failed:
                log.warning("nodes cannot be written down", why=error)
            self._failed = True
            return
        if self._failed:
            self._failed = False
            self._stores.inventory.grant_grace(self._clock.monotonic() + GRACE_S)
        self._written = {item.id: str(item.session) for item in connected}
        if every:
            self._all_at = now + ALL_EVERY_S
