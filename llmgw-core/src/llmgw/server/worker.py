"""One router process among several that share a port. Started by `workers`, never by hand.

It gets its order on standard input, which stays open: its end means that the parent is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping

import anyio
import msgspec
from anyio.abc import TaskStatus

from llmgw import logs
from llmgw.clock import SystemClock
from llmgw.config.loading import load_server
from llmgw.domain.secret import Secret
from llmgw.plugins import load_registry
from llmgw.server.running import run_until_stopped, run_with_signals
from llmgw.server.standalone import RouterServing, StandaloneRouter

READY = b"ready\n"
"""What a worker says on standard output once it serves."""


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker is told."""

    flags: Mapping[str, object]  #: settings by dotted path
    feed: str  #: `unix:/PATH` of the parent
    token: str  #: opens the feed, and the worker's own metrics
    api_fd: int  #: listening
    admin_fd: int  #: listening


class _Tethered:
    """A router that ends with its parent."""

    def __init__(self, router: StandaloneRouter) -> None:
        self._router = router

    async def run(self, *, task_status: TaskStatus[RouterServing]) -> None:
        async with anyio.create_task_group() as tether:
            async with anyio.create_task_group() as tasks:
                serving: RouterServing = await tasks.start(self._router.run)
                os.write(sys.stdout.fileno(), READY)
                task_status.started(serving)
                tether.start_soon(self._follow_parent)
            tether.cancel_scope.cancel()

    async def _follow_parent(self) -> None:
        await anyio.wait_readable(sys.stdin.fileno())
        self.stop()

    def stop(self) -> None:
        self._router.stop()

    def reload(self) -> None:
        self._router.reload()


def main() -> None:
    """Serve as ordered until SIGTERM, or until the parent is gone."""
    os.umask(0o077)
    # The terminal sends Ctrl-C to the whole group; the parent passes on what is meant for us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerOrder)
    loaded = load_server(None, {}, order.flags, needs_work=False)
    said = loaded.settings.log
    # Starts and stops are the parent's to tell, once for all.
    level = "warning" if said.level == "info" else said.level
    logs.configure(level=level, as_json=said.format == "json")
    registry = load_registry()
    token = Secret(order.token)
    router = StandaloneRouter(
        loaded,
        servers=[order.feed],
        token=token,
        balancers=registry.balancers,
        engines=registry.engines,
        clock=SystemClock(),
        own_token=token,
        sockets={
            "listen": socket.socket(fileno=order.api_fd),
            "admin_listen": socket.socket(fileno=order.admin_fd),
        },
    )
    run_until_stopped(lambda: run_with_signals(_Tethered(router)))


if __name__ == "__main__":
    main()
