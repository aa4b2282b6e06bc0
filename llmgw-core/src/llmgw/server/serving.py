"""uvicorn as a service of ours: it neither owns signals nor ends the process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import anyio
import uvicorn
from anyio.abc import TaskStatus

from llmgw.server.tls import Certificate


class HttpListener:
    """One listener. `run` serves until `stop` was called and its requests have ended.

    app: ASGI. protocol: class that parses connections, None for uvicorn's own. handshake_s: how
    long a client may take over its TLS handshake. drain_limit_s: how long requests may go on
    after `stop`.
    """

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        *,
        protocol: Callable[..., asyncio.Protocol] | None = None,
        tls: Certificate | None = None,
        handshake_s: float = 10.0,
        drain_limit_s: float,
    ) -> None:
        self._socket = listener
        self._server = _Server(
            uvicorn.Config(
                app,
                # h11 reads a smuggled second request and folded headers; httptools does not.
                # uvicorn only ever calls it, so a partial does as well as a class.
                http=protocol or "httptools",  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=None,
                ssl_context_factory=(lambda _config, _default: tls.context) if tls else None,
            ),
            handshake_s,
        )
        self._drain_limit_s = drain_limit_s

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve. Returns after `stop`, when the last request has ended or the limit is over."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._server.serve, [self._socket])
            await self._server.ready.wait()
            task_status.started()
            await self._server.stopping.wait()
            with anyio.move_on_after(self._drain_limit_s + 1.0):
                await self._server.ended.wait()
            self._server.force_exit = True
            for connection in list(self._server.server_state.connections):
                _cut(connection)

    def stop(self) -> None:
        """Accept nothing more; requests under way may end. Safe to repeat."""
        self._server.should_exit = True
        self._server.stopping.set()


class _Server(uvicorn.Server):
    """Signals have one owner, which is not this."""

    def __init__(self, config: uvicorn.Config, handshake_s: float) -> None:
        super().__init__(config)
        self._handshake_s = handshake_s
        self.ready = anyio.Event()
        self.stopping = anyio.Event()
        self.ended = anyio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        finally:
            self.ended.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept on these sockets. Not by uvicorn's own method: that one gives a handshake the
        60 s of asyncio, in which a connection is not counted and none of our limits holds."""
        config = self.config
        protocol = partial(
            cast(Callable[..., asyncio.Protocol], config.http_protocol_class),
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                protocol,
                sock=one,
                ssl=config.ssl,
                ssl_handshake_timeout=self._handshake_s if config.ssl else None,
                backlog=config.backlog,
            )
            for one in sockets or ()
        ]
        self.started = True
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _cut(connection: Any) -> None:
    # Our own connections know how to be cut; uvicorn's only have a transport.
    cut = getattr(connection, "cut", None)
    if cut is not None:
        cut()
    elif (transport := getattr(connection, "transport", None)) is not None:
        transport.abort()
