"""Orders of all servers, carried out one after the other, in the order in which they came.

Not by whoever reads them: an order is on the disk before it counts as taken, and a disk that is
slow must delay orders alone, never a heartbeat or the next session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio
import anyio.abc

from llmgw.domain.commands import Command
from llmgw.domain.reports import Rejection

Refuse = Callable[[Rejection], None]
"""Tells the server that ordered it. Must not wait, nor raise if that server is gone."""


class Commands(Protocol):
    """Takes orders."""

    async def apply(self, command: Command) -> Rejection | None:
        """Make the edit durable, or say why not. Safe to repeat; may take as long as a disk does."""
        ...


class Orders:
    """Those that wait."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._waiting: deque[tuple[Command, Refuse]] = deque()
        self._filled = anyio.Event()

    def put(self, command: Command, refuse: Refuse) -> None:
        """Have it carried out. One that a server repeats while it waits still waits once."""
        if (command, refuse) not in self._waiting:
            self._waiting.append((command, refuse))
            self._filled.set()

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Carry them out until cancelled."""
        task_status.started()
        while True:
            self._filled = anyio.Event()
            while self._waiting:
                command, refuse = self._waiting[0]
                if (rejection := await self._commands.apply(command)) is not None:
                    refuse(rejection)
                self._waiting.popleft()
            await self._filled.wait()
