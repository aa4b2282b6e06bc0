"""One small GET over a pooled connection, bounded in time and size.

For the router's own looks at engines. A general HTTP client costs over a millisecond of CPU a
look; with a thousand endpoints that is felt in every stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from llmgw.domain.endpoints import Endpoint
from llmgw.router.pool.connection import EngineConnection, EngineExchange, EngineFailure
from llmgw.router.pool.head import AnswerHead
from llmgw.router.pool.pool import ConnectionPool, Opening, Unreachable, split_url
from llmgw.router.timers import within


@dataclass(frozen=True, slots=True)
class Page:
    """What an engine answered."""

    status: int
    body: bytes

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


class LookFailed(Exception):
    """There was no answer, or none that could be used."""

    def __init__(self, reason: str, *, is_away: bool = False, is_refused: bool = False) -> None:
        super().__init__(reason)
        self.is_away = is_away  #: no connection was made
        self.is_refused = is_refused  #: the address itself said that nobody listens there


class Looks:
    """Looks at engines, over the connections that requests use or over fresh ones."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def get(
        self, endpoint: Endpoint, path: str, *, limit_s: float, most: int, fresh: bool = False
    ) -> Page:
        """Return the answer to a GET. Raises LookFailed.

        limit_s: for all of it. most: bytes of a body; a larger one is a failure. fresh: over a
        connection of its own. Only that tells an engine which cannot be reached, in the time of
        a connect, from one that is slow to answer.
        """
        look = _Look(self._pool, endpoint, path, most, fresh)
        try:
            async with within(self._pool.wheel, limit_s):
                look.begin()
                await look.over.wait()
        except TimeoutError:
            raise LookFailed(f"no answer within {limit_s:g} s") from None
        finally:
            look.give_up()
        return look.page()


class _Look(EngineExchange):
    """One look on its way."""

    __slots__ = (
        "_body",
        "_connection",
        "_endpoint",
        "_failure",
        "_fresh",
        "_most",
        "_opening",
        "_path",
        "_pool",
        "_status",
        "over",
    )

    def __init__(
        self, pool: ConnectionPool, endpoint: Endpoint, path: str, most: int, fresh: bool
    ) -> None:
        self._pool = pool
        self._endpoint = endpoint
        self._path = path
        self._most = most
        self._fresh = fresh
        self._status = 0
        self._body = bytearray()
        self._failure: Unreachable | None = None
        self._opening: Opening | None = None
        self._connection: EngineConnection | None = None
        self.over = anyio.Event()

    def begin(self) -> None:
        connection = None if self._fresh else self._pool.take(self._endpoint)
        if connection is not None:
            self._send(connection)
        else:
            self._open()

    def page(self) -> Page:
        if (why := self._failure) is not None:
            # Made here, and never kept: its traceback leads to frames that know this look, and all of
            # them would wait for the collector.
            raise LookFailed(why.reason, is_away=why.is_away, is_refused=why.is_refused)
        return Page(self._status, bytes(self._body))

    def give_up(self) -> None:
        """Let go of whatever is still under way."""
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.abandon()

    def _open(self) -> None:
        self._opening = self._pool.open(self._endpoint, self._opened, self._unreachable)

    def _opened(self, connection: EngineConnection) -> None:
        self._opening = None
        self._send(connection)

    def _unreachable(self, why: Unreachable) -> None:
        self._opening = None
        self._fail(why)

    def _send(self, connection: EngineConnection) -> None:
        self._connection = connection
        connection.send(self, _head(self._endpoint, self._path, close=self._fresh), b"")

    def answer_head(self, head: AnswerHead) -> None:
        self._status = head.status

    def answer_data(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._most:
            self.give_up()
            self._connection = None
            self._fail(_there(f"the page is larger than {self._most} bytes"))

    def answer_end(self) -> None:
        connection, self._connection = self._connection, None
        if self._fresh and connection is not None:
            connection.close()  # an engine need not have heeded our wish
        self.over.set()

    def answer_lost(self, failure: EngineFailure, *, stale: bool) -> None:
        self._connection = None
        if stale:
            # Engines close idle connections in the very moment of the next look (C026).
            self._open()
        else:
            self._fail(_there(f"the connection ended: {failure}"))

    def _fail(self, why: Unreachable) -> None:
        self._failure = why
        self.over.set()


def _there(reason: str) -> Unreachable:
    """Return what was wrong with an engine that could be reached."""
    return Unreachable(reason, is_refused=False, is_away=False)


def _head(endpoint: Endpoint, path: str, *, close: bool) -> bytes:
    address = split_url(endpoint.url)
    lines = [
        f"GET {address.base_path}{path} HTTP/1.1",
        f"host: {address.authority}",
        "user-agent: llmgw",
        "accept-encoding: identity",
    ]
    if close:
        lines.append("connection: close")
    if endpoint.credential is not None:
        lines.append(f"authorization: Bearer {endpoint.credential.reveal()}")
    lines += [f"{name.lower()}: {value}" for name, value in endpoint.headers.items()]
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")
