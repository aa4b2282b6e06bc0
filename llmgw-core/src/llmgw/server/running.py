"""An event loop for something that serves, and its signals.

Signals have one owner, here. The first SIGTERM or SIGINT ends in order, the second at once;
SIGHUP reads the configuration again.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import anyio
from anyio.abc import TaskStatus

from llmgw.clock import SystemClock
from llmgw.errors import LlmgwError
from llmgw.logs import get_logger
from llmgw.server import memory
from llmgw.systemd import Supervision

log = get_logger(__name__)


class Stoppable(Protocol):
    """What a process runs and its signals act on."""

    async def run(self, *, task_status: TaskStatus[Any]) -> None:
        """Serve until `stop`; calls `started` once it serves."""
        ...

    def stop(self) -> None:
        """End in order. Safe to repeat."""
        ...

    def reload(self) -> None:
        """Read the files again."""
        ...


def run_until_stopped(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an event loop, uvloop's where it is installed. Raises the first error as itself."""
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    try:
        anyio.run(main, backend_options={"use_uvloop": has_uvloop})
    except BaseExceptionGroup as group:
        raise _first(group) from group


async def run_with_signals(server: Stoppable) -> None:
    """Run `server`, stopping and reloading it as signals say, and tell systemd that it lives."""
    supervision = Supervision(os.environ)
    async with anyio.create_task_group() as tasks:
        await tasks.start(_obey_signals, server)
        async with anyio.create_task_group() as running:
            await running.start(server.run)
            memory.settle()
            memory.set_aside_what_stays()
            tasks.start_soon(memory.give_back_often)
            tasks.start_soon(supervision.keep_alive, SystemClock())
        tasks.cancel_scope.cancel()


async def _obey_signals(server: Stoppable, *, task_status: TaskStatus[None]) -> None:
    stopping = False
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGHUP:
                server.reload()
            elif stopping:
                # Nothing that matters is lost: the store commits, and engines are not ours.
                os._exit(128 + number)
            else:
                stopping = True
                log.info("stopping", signal=signal.Signals(number).name, again="ends at once")
                server.stop()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that a person can act on, or else the first one, out of all groups."""
    leaves = _leaves(group)
    return next((error for error in leaves if isinstance(error, LlmgwError)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
