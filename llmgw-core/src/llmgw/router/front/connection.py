"""One client connection: an `asyncio.Protocol` of our own, made by uvicorn for each accept.

It answers the hot routes itself through `ingress`, and hands everything else to the ASGI
application. uvicorn's part of the bargain, pinned by a test: the
class is called with (config, server_state, app_state, _loop), keeps itself in
`server_state.connections` and its tasks in `server_state.tasks`, has `shutdown()` and a
`transport` that may be aborted.

Reading goes on while an answer is under way: without that, a client that left would not be
noticed before the next write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from llmgw.errors import RequestError
from llmgw.router.forward import Exchange
from llmgw.router.front import refusals
from llmgw.router.front.cold import ColdCycle
from llmgw.router.front.filling import Filling
from llmgw.router.front.front import Front
from llmgw.router.front.head import new_request_id
from llmgw.router.front.reader import RequestReader
from llmgw.router.front.repeated import RepeatedRequest
from llmgw.router.front.vanished import drop, notice_vanished
from llmgw.router.front.without_engine import answer_without_engine
from llmgw.router.ingress import Request
from llmgw.router.keys import KeyGrant
from llmgw.router.replies import Reply, error_reply
from llmgw.router.routes import Dialect
from llmgw.router.timers import NEVER, Deadline

WRITE_HIGH = 64 * 1024
WRITE_LOW = 16 * 1024
_LINGER_S = 2.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Connection(asyncio.Protocol):
    """Implements `forward.Client` for the exchange that it carries at the moment."""

    __slots__ = (
        "_advancing",
        "_closing",
        "_config",
        "_cycle",
        "_exchange",
        "_filling",
        "_front",
        "_is_admitted",
        "_outbox",
        "_peer",
        "_reader",
        "_reading_paused",
        "_repeated",
        "_request",
        "_server",
        "_state",
        "_waiting",
        "deadline",
        "is_paused",
        "transport",
    )

    def __init__(
        self,
        front: Front,
        *,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._front = front
        self._outbox = front.outbox
        self._config = config
        self._server = front.server = server_state
        self._state = app_state
        self.transport: asyncio.Transport | None = None
        self._reader = RequestReader(front, self._invite_body)
        self._waiting = self._reader.read
        self._repeated: RepeatedRequest | None = None  #: which is likely to come again
        self._request: Request | None = None  #: being answered
        self._exchange: Exchange | None = None
        self._cycle: ColdCycle | None = None
        self._filling: Filling | None = None  #: who reads meanwhile
        self._advancing = False
        self._closing = False
        self._reading_paused = False
        self._is_admitted = False
        self._peer = ""
        self.is_paused = False
        self.deadline = Deadline(front.wheel, self._expired)

    # -- asyncio's side --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH, low=WRITE_LOW)
        notice_vanished(transport)
        peer = transport.get_extra_info("peername")
        self._peer = self._reader.peer = peer[0] if isinstance(peer, tuple) else ""
        self._server.connections.add(self)  # type: ignore[arg-type]  # uvicorn names its own classes
        self._reader.is_proxied = self._front.limits.proxies.trusts(self._peer)
        self._is_admitted = self._front.admits(self._peer)
        if not self._is_admitted:
            self._front.metrics.connections_refused += 1
            self._refuse(refusals.too_many_connections())
            return
        self.deadline.set(self._front.limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's name
        self._server.connections.discard(self)
        self.transport = None
        self._filling = None
        self._reader.end()
        self._waiting.clear()
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.client_left()
        if self._cycle is not None:
            self._cycle.client_left()
            self._cycle = None
        self.deadline.end()
        if self._is_admitted:
            self._is_admitted = False
            self._front.left(self._peer)

    def eof_received(self) -> bool:
        # A client that closed its half is taken to have left, as by every proxy of this kind.
        return False

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.is_deaf:
            return
        is_idle = self._request is None and reader.incoming is None and not self._waiting
        if is_idle and self._repeated is not None and self._answer_again(self._repeated, data):
            return
        reader.feed(data)
        if reader.incoming is not None and not self._is_busy:
            patience_s = reader.patience_s()
            if patience_s is not None:
                self.deadline.set(patience_s)
            rest = reader.rest_of_body()
            if rest is not None and self.transport is not None:
                self._filling = Filling(self, rest)
                self.transport.set_protocol(self._filling)
        if self._waiting and not self._advancing:
            if is_idle and not reader.is_deaf:
                self._repeated = self._remembered(data)
            self._advance()

    def body_grew(self, count: int) -> None:
        """Of a large body, so much has been read into its memory."""
        self._reader.body_grew(count)
        patience_s = self._reader.patience_s()
        if patience_s is not None:
            self.deadline.set(patience_s)

    def body_is_whole(self) -> None:
        """There is nothing more to come of it."""
        self._listen_again()
        self._reader.body_is_whole()
        if not self._advancing:
            self._advance()

    def _listen_again(self) -> None:
        if self._filling is not None and self.transport is not None:
            self.transport.set_protocol(self)
        self._filling = None

    @property
    def _is_busy(self) -> bool:
        """Whether the deadline belongs to something other than the request that is coming in."""
        return self._exchange is not None or self._cycle is not None or bool(self._waiting)

    def _invite_body(self) -> None:
        if self._exchange is None:
            self.write(_CONTINUE)

    def _remembered(self, data: bytes) -> RepeatedRequest | None:
        """Return the head of the one request that waits, if all of it was in this read."""
        request, grant = cast("tuple[Request, KeyGrant | None]", self._waiting[0])
        ingress = self._front.ingress
        if grant is None or ingress is None or grant.key.expires_at is not None:
            return None
        return RepeatedRequest.of(data, request, grant, ingress.keys.generation)

    def _answer_again(self, repeated: RepeatedRequest, data: bytes) -> bool:
        """Answer a request whose head is known; False if it is another, or may be judged
        differently now."""
        front = self._front
        body = repeated.body(data)
        if (
            body is None
            or len(body) > front.limits.body_bytes
            or front.ingress is None
            or repeated.generation != front.ingress.keys.generation
            or self._closing
        ):
            return False
        request = repeated.request
        request.body = body
        request.request_id = request.given_id or new_request_id()
        self._answer(request, repeated.grant)
        return True

    def pause_writing(self) -> None:
        self.is_paused = True
        if self._exchange is not None:
            self._exchange.client_paused()
        elif self._cycle is not None:
            self._cycle.client_paused()
            self.deadline.set(self._front.limits.stalled_s)

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._exchange is not None:
            self._exchange.client_resumed()
        elif self._cycle is not None:
            self.deadline.due = NEVER
            self._cycle.client_resumed()

    # -- uvicorn's side --------------------------------------------------------------------

    def shutdown(self) -> None:
        """Finish what is under way, take nothing new, then close."""
        if self._exchange is None and self._cycle is None:
            self._close()
            return
        self._deaf_to_new()

    def _deaf_to_new(self) -> None:
        self._closing = True
        if self._request is not None:
            self._request.keep_alive = False

    # -- answering -------------------------------------------------------------------------

    def _advance(self) -> None:
        """Answer what waits, one after the other, as long as answers are ready at once."""
        self._advancing = True
        try:
            while self._waiting and self._exchange is None and self._cycle is None:
                if self.transport is None or self._closing:
                    # What came behind the last request of a connection is never answered.
                    self._waiting.clear()
                    break
                item = self._waiting.popleft()
                if isinstance(item, RequestError):
                    self._refuse(item)
                else:
                    self._answer(*item)
        finally:
            self._advancing = False
        if self._waiting and not self._reading_paused:
            # Pipelined requests wait in memory; more of them may wait with their sender.
            self._pause_reading()
        elif self._reading_paused and not self._waiting:
            self._resume_reading()

    def _answer(self, request: Request, grant: KeyGrant | None) -> None:
        self._request = request
        self.deadline.due = NEVER
        ingress = self._front.ingress
        if request.route is not None and ingress is not None and grant is not None:
            try:
                exchange = ingress.exchange(request, request.route, grant, self)
            except RequestError as error:
                self.reply(error_reply(error, request.route.dialect))
                return
            request.body = b""
            self._exchange = exchange
            exchange.start()
        else:
            self._answer_cold(request)

    def _answer_cold(self, request: Request) -> None:
        reply = answer_without_engine(request, self._front)
        if reply is not None:
            self.reply(reply)
            return
        self._cycle = ColdCycle(self, self._config.loaded_app, request, self._state)
        task = asyncio.get_running_loop().create_task(self._cycle.run(self.transport))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def head(self, status: int, headers: bytes, length: int | None) -> bytes:
        request = self._request or Request()
        tail = b"\r\n"
        if length is not None:
            if status >= 200 and status != 204:
                tail = b"content-length: %d\r\n\r\n" % length
        elif request.is_http11:
            tail = b"transfer-encoding: chunked\r\n\r\n"
        else:
            request.keep_alive = False
        if not request.keep_alive:
            headers += b"connection: close\r\n"
        elif not request.is_http11:
            headers += b"connection: keep-alive\r\n"
        if request.origin is not None:
            headers += self._front.cors.headers(request.origin)
        first = _STATUS.get(status) or b"HTTP/1.1 %d \r\n" % status
        return first + self._front.date(self._server.default_headers) + headers + tail

    def piece(self, data: bytes) -> bytes:
        if self._request is not None and self._request.is_http11:
            return b"%x\r\n%b\r\n" % (len(data), data)
        return data

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            # At once, so that an application learns at once when it has to wait.
            self._outbox.flush()
            self.transport.write(data)

    def write_whole(self, status: int, headers: bytes, body: bytes) -> None:
        head = self.head(status, headers, len(body))
        if self.transport is not None:
            self._outbox.write(self.transport, head + body)

    def write_piece(self, data: bytes) -> None:
        transport, request = self.transport, self._request
        if transport is not None and request is not None:
            framed = b"%x\r\n%b\r\n" % (len(data), data) if request.is_http11 else data
            self._outbox.write(transport, framed)

    def finish(self, *, ended: bool) -> None:
        request, self._request = self._request, None
        self._exchange = None
        self._cycle = None
        if self.transport is None or request is None:
            return
        request.body = b""  # its head may be remembered, its body must not
        if ended and request.is_http11:
            self._outbox.write(self.transport, b"0\r\n\r\n")
        self._server.total_requests += 1
        if not request.keep_alive or self._closing:
            self._close()
            return
        if self._reader.incoming is None:
            self.deadline.set(self._front.limits.keep_alive_s)
        else:
            self.deadline.set(self._front.limits.body_idle_s)
        if (self._waiting or self._reading_paused) and not self._advancing:
            self._advance()

    def cut(self) -> None:
        self._exchange = None
        self._cycle = None
        self._request = None
        if self.is_paused and self.transport is not None:
            drop(self.transport)
        else:
            self._close()

    def reply(self, reply: Reply) -> None:
        request = self._request
        lines = b"".join(b"%b: %b\r\n" % item for item in reply.headers)
        if request is not None and request.request_id:
            lines += b"x-request-id: %b\r\n" % request.request_id
        body = b"" if request is not None and request.method == b"HEAD" else reply.body
        self.write(self.head(reply.status, lines, len(reply.body)) + body)
        self.finish(ended=False)

    # -- refusing and closing --------------------------------------------------------------

    def _refuse(self, error: RequestError) -> None:
        self._reader.is_deaf = True
        self._listen_again()
        request = self._request or self._reader.refused or Request()
        request.keep_alive = False
        self._request = request
        route = self._front.hot.get(request.path)
        dialect = route.dialect if route is not None else Dialect.OPENAI
        extra = ((b"accept-encoding", b"identity"),) if error.status == 415 else ()
        self.reply(error_reply(error, dialect, extra))

    def _close(self) -> None:
        """Close once everything is written, without throwing away an answer half-way.

        A socket that is closed while the client still sends is reset, and the reset may
        overtake the answer: so the sending half goes first, and what comes is read and dropped.
        """
        self._closing = True
        self._outbox.flush()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._reader.is_deaf and transport.can_write_eof():
            transport.write_eof()
            self._resume_reading()
            self.deadline.set(_LINGER_S)
        else:
            transport.close()
            self.deadline.set(self._front.limits.stalled_s)

    def _expired(self) -> None:
        if self._exchange is not None:
            self._exchange.expired()
        elif self.transport is None:
            return
        elif self._closing or self._cycle is not None:
            drop(self.transport)
        elif self._reader.incoming is not None:
            self._refuse(refusals.too_slow())
        else:
            self._close()

    @property
    def exchange(self) -> Exchange | None:
        """What it carries at the moment."""
        return self._exchange

    def _pause_reading(self) -> None:
        if self.transport is not None and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self.transport is not None and self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()


def exchanges(front: Front) -> Iterator[Exchange]:
    """Yield every exchange that is under way. For rare questions: it looks at all connections."""
    if front.server is not None:
        for connection in tuple(front.server.connections):
            if isinstance(connection, Connection) and connection.exchange is not None:
                yield connection.exchange
