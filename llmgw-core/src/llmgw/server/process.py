"""One server or router as a process: settings, event loop, signals, exit.

Signals have one owner, here. The first SIGTERM or SIGINT ends in order, the second at once;
SIGHUP reads the configuration again.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import anyio
from anyio.abc import TaskStatus

from llmgw import logs
from llmgw.clock import SystemClock
from llmgw.config.loading import Loaded, load_server
from llmgw.domain.secret import Secret
from llmgw.errors import LlmgwError
from llmgw.plugins import Registry, load_registry
from llmgw.server.standalone import StandaloneRouter

log = logs.get_logger(__name__)


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


def run_server(
    config: Path | None, flags: Mapping[str, object], *, allow_empty: bool = False
) -> None:
    """Run `llmgw server` until it is told to stop. Raises LlmgwError if it cannot start."""
    from llmgw.server.app import (
        Server,  # brings the store and its libraries, which a router must not have
    )

    loaded, registry = _begin(config, flags, needs_work=True)
    server = Server(
        loaded,
        registry,
        clock=SystemClock(),
        load=lambda: load_server(config, os.environ, flags, installed=registry.installed),
        may_empty=allow_empty,
    )
    run_until_stopped(lambda: run_with_signals(server))


def run_router(
    config: Path | None, flags: Mapping[str, object], *, servers: Sequence[str], token: Secret
) -> None:
    """Run `llmgw router` until it is told to stop. Raises LlmgwError if it cannot start."""
    loaded, registry = _begin(config, flags, needs_work=False)
    router = StandaloneRouter(
        loaded,
        servers=servers,
        token=token,
        balancers=registry.balancers,
        engines=registry.engines,
        clock=SystemClock(),
    )
    run_until_stopped(lambda: run_with_signals(router))


def _begin(
    config: Path | None, flags: Mapping[str, object], *, needs_work: bool
) -> tuple[Loaded, Registry]:
    # Whatever this process writes is for its user only, tokens and tables above all.
    os.umask(0o077)
    logs.configure()
    registry = load_registry()
    loaded = load_server(
        config, os.environ, flags, installed=registry.installed, needs_work=needs_work
    )
    registry.require(loaded.settings.required_plugins)
    said = loaded.settings.log
    logs.configure(level=said.level, as_json=said.format == "json")
    return loaded, registry


def run_until_stopped(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an event loop, uvloop's where it is installed. Raises the first error as itself."""
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    try:
        anyio.run(main, backend_options={"use_uvloop": has_uvloop})
    except BaseExceptionGroup as group:
        raise _first(group) from group


async def run_with_signals(server: Stoppable) -> None:
    """Run `server`, stopping and reloading it as signals say."""
    async with anyio.create_task_group() as tasks:
        await tasks.start(_obey_signals, server)
        async with anyio.create_task_group() as running:
            await running.start(server.run)
            # What the start made stays for good: the collector need not look at it again.
            gc.collect()
            gc.freeze()
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
