"""Idle connections by endpoint, and the opening of new ones.

The only place of the router that resolves names and opens sockets to engines on the
request path. It owns the tasks that do so: one for each new connection, none for a
reused one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId
from llmgw.router.outbox import Outbox
from llmgw.router.pool.connection import READ_HIGH, READ_LOW, EngineConnection
from llmgw.router.timers import Deadline, TimerWheel, within

IDLE_LIMIT = 1024  #: kept per endpoint; more are closed after use
# Engines close theirs after 5 s (uvicorn under vLLM and SGLang, cpp-httplib under llama.cpp), and a
# request that meets that moment has to be sent again.
IDLE_FOR_S = 4.0
# The one used last is used next, so that many that wait are of a crowd that has gone elsewhere: an
# engine has come back, say. Some 5 kB each, they would be what the process is largest for.
IDLE_FEW = 8  #: of each endpoint may wait for IDLE_FOR_S, the others for SURPLUS_FOR_S
SURPLUS_FOR_S = 1.0
SWEEP_EVERY_S = 0.5
_OUR_OWN_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL)


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Why there is no connection."""

    reason: str  #: holds no address: clients are told
    is_refused: bool  #: the address itself says that nobody listens there
    is_away: bool  #: nobody is there now; False: not trusted, or the fault is on our side


class Opening:
    """A connection on its way. `cancel` makes sure that neither callback is called."""

    __slots__ = ("_failed", "_ready", "task")

    def __init__(
        self, ready: Callable[[EngineConnection], None], failed: Callable[[Unreachable], None]
    ) -> None:
        self._ready: Callable[[EngineConnection], None] | None = ready
        self._failed = failed
        self.task: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> bool:
        return self._ready is not None

    def cancel(self) -> None:
        self._ready = None
        # Let go of: a task that was cancelled keeps its frame, and that knows us. Together they
        # would wait for the collector, with the connection that never was.
        task, self.task = self.task, None
        if task is not None:
            task.cancel()

    def succeed(self, connection: EngineConnection) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready(connection)

    def fail(self, reason: str, *, is_away: bool = True, is_refused: bool = False) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            self._failed(Unreachable(reason, is_away=is_away, is_refused=is_refused))


class ConnectionPool:
    """Connections to all engines of one router."""

    def __init__(
        self, wheel: TimerWheel, *, connect_limit_s: float, outbox: Outbox | None = None
    ) -> None:
        self.wheel = wheel  #: whose time limits are counted in
        self._outbox = outbox or Outbox()
        self._connect_limit_s = connect_limit_s
        self._idle: dict[EndpointId, list[EngineConnection]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep = Deadline(wheel, self._close_old)
        self._closed = False

    def take(self, endpoint: Endpoint) -> EngineConnection | None:
        """Return an idle connection, the one used last; None if there is none."""
        idle = self._idle.get(endpoint.id)
        while idle:
            connection = idle.pop()
            if connection.usable:
                opened_to = connection.endpoint
                if opened_to is endpoint or opened_to.is_same_process(endpoint):
                    return connection
                # Lent while the endpoint was another process, and given back since.
                connection.close()
        return None

    def open(
        self,
        endpoint: Endpoint,
        ready: Callable[[EngineConnection], None],
        failed: Callable[[Unreachable], None],
    ) -> Opening:
        """Open a connection within the connect limit; one of the callbacks comes later."""
        opening = Opening(ready, failed)
        task = asyncio.get_running_loop().create_task(self._connect(endpoint, opening))
        opening.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return opening

    def forget(self, endpoint: EndpointId) -> None:
        """The endpoint left or a new process stands behind it: its idle connections go."""
        for connection in self._idle.pop(endpoint, ()):
            connection.close()

    @property
    def idle(self) -> int:
        """How many idle connections are kept."""
        return sum(len(connections) for connections in self._idle.values())

    async def aclose(self) -> None:
        """Close what is idle and give up what is being opened."""
        self._closed = True
        self._sweep.cancel()
        for endpoint in list(self._idle):
            self.forget(endpoint)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, endpoint: Endpoint, opening: Opening) -> None:
        address = split_url(endpoint.url)
        if not address.host:
            opening.fail("its URL makes no sense", is_away=False)
            return
        connection = EngineConnection(endpoint, self._released, self._outbox)
        try:
            async with within(self.wheel, self._connect_limit_s):
                transport, _ = await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    address.host,
                    address.port,
                    ssl=client_context() if address.secure else None,
                    server_hostname=address.host if address.secure else None,
                )
        except TimeoutError:
            opening.fail(f"no connection within {self._connect_limit_s:g} s")
            return
        except ssl.SSLError as error:
            opening.fail(type(error).__name__, is_away=False)
            return
        except UnicodeError:  # a label of the host's name is empty or too long
            opening.fail("its host name cannot be looked up", is_away=False)
            return
        except OSError as error:  # refused, unreachable, not resolved
            # asyncio's own text holds the address, which is not for clients to know.
            code = error.errno
            reason = os.strerror(code).lower() if code and code > 0 else type(error).__name__
            opening.fail(
                reason,
                is_away=code not in _OUR_OWN_LIMITS,
                is_refused=isinstance(error, ConnectionRefusedError),
            )
            return
        transport.set_write_buffer_limits(high=READ_HIGH, low=READ_LOW)
        if opening.wanted:
            opening.succeed(connection)
        else:
            connection.close()

    def _released(self, connection: EngineConnection, reusable: bool) -> None:
        if not reusable or self._closed:
            connection.close()
            self._remove(connection)
            return
        idle = self._idle.setdefault(connection.endpoint.id, [])
        if len(idle) >= IDLE_LIMIT:
            connection.close()
            return
        connection.idle_since = self.wheel.now
        idle.append(connection)
        if self._sweep.due > self.wheel.now + SWEEP_EVERY_S:
            self._sweep.set(SWEEP_EVERY_S)

    def _remove(self, connection: EngineConnection) -> None:
        idle = self._idle.get(connection.endpoint.id)
        if idle and connection in idle:
            idle.remove(connection)

    def _close_old(self) -> None:
        now = self.wheel.now
        for endpoint, idle in list(self._idle.items()):
            old = _how_many_are_old(idle, now)
            for connection in idle[:old]:
                connection.close()
            del idle[:old]
            if not idle:
                del self._idle[endpoint]
        if self._idle:
            self._sweep.set(SWEEP_EVERY_S)


def _how_many_are_old(idle: Sequence[EngineConnection], now: float) -> int:
    """Return how many of the first ones are to be closed. idle: the longest idle first."""
    few = len(idle) - IDLE_FEW
    for number, connection in enumerate(idle):
        if connection.idle_since > now - (SURPLUS_FOR_S if number < few else IDLE_FOR_S):
            return number
    return len(idle)


class EngineAddress:
    """The parts of an endpoint's URL. Raises ValueError for what is none, or not plain ASCII."""

    __slots__ = ("authority", "base_path", "host", "port", "secure")

    def __init__(self, url: str) -> None:
        if not url.isascii():
            raise ValueError("not plain ASCII")
        parts = urlsplit(url)
        self.secure = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.secure else 80)
        self.authority = parts.netloc.rpartition("@")[2]  #: as the `Host` header wants it
        self.base_path = parts.path.rstrip("/")


@lru_cache(maxsize=4096)
def split_url(url: str) -> EngineAddress:
    """Return the parts of an endpoint's URL; no host where it makes no sense.

    Configured ones have been checked. Others are what agents report, of which a bad one must
    end no more than the requests that are sent there.
    """
    try:
        return EngineAddress(url)
    except ValueError:
        return EngineAddress("")


@lru_cache(maxsize=1)
def client_context() -> ssl.SSLContext:
    """Return how engines behind https are checked: by the machine's own roots."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
