"""One connection to an engine: HTTP/1.1 by httptools, one exchange at a time.

Everything that arrives in one read is handed over before `flush`, so that an exchange can
answer its client with one write.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, cast

import httptools

from llmgw.domain.endpoints import Endpoint
from llmgw.router.outbox import Outbox
from llmgw.router.pool.head import AnswerHead
from llmgw.router.pool.unreached import notice_unreached
from llmgw.router.repeated import RepeatedHead

READ_HIGH = 256 * 1024
READ_LOW = 64 * 1024
RECEIVE_BYTES = 128 * 1024
"""Of the kernel's buffer for each engine. At a round trip of 1 ms that still lets 100 MB/s by."""
_SLICE = 256 * 1024
_HEAD_LIMIT = 256 * 1024
_HEADER_COUNT_LIMIT = 256
_UNLIKE_LIMIT = 16
"""After so many heads that were all different (some name their request) it is seldom that one is
remembered."""


class EngineFailure(StrEnum):
    """How a connection ended before its answer did."""

    CONNECT = "connect"  #: refused, unreachable, TLS, or not there in time
    RESET = "reset"  #: closed or reset by the engine
    GARBLED = "garbled"  #: what came is not HTTP


class EngineExchange(Protocol):
    """Who gets an answer. Called from the connection's own callbacks; none may wait."""

    __slots__ = ()

    def answer_head(self, head: AnswerHead) -> None: ...

    def answer_data(self, data: bytes) -> None:
        """Take the part of the body that one read brought; never empty."""
        ...

    def answer_end(self) -> None:
        """The answer is whole, and the connection is given back."""
        ...

    def answer_whole(self, head: AnswerHead, body: bytes) -> None:
        """Take all of an answer at once; the connection is given back."""
        self.answer_head(head)
        if body:
            self.answer_data(body)
        self.answer_end()

    def answer_lost(self, failure: EngineFailure, *, stale: bool) -> None:
        """The connection is gone. stale: it had been reused and nothing of an answer came."""
        ...


def _receive_little(transport: asyncio.BaseTransport) -> None:
    """Bound what the kernel takes in for a client that does not read, and what one read brings."""
    engine = transport.get_extra_info("socket")
    if engine is not None:
        engine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)


class EngineConnection(asyncio.Protocol):
    """A connection that is idle in its pool, or lent to one exchange."""

    __slots__ = (
        "_answered",
        "_arrived",
        "_exchange",
        "_head",
        "_head_bytes",
        "_head_of",
        "_headers",
        "_in_body",
        "_is_held_back",
        "_keep",
        "_outbox",
        "_over",
        "_parser",
        "_paused",
        "_repeated",
        "_reused",
        "_surplus",
        "_transport",
        "_unlike",
        "_unsent",
        "_unsent_at",
        "endpoint",
        "idle_since",
        "on_body",
        "on_header",
        "released",
        "usable",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        released: Callable[[EngineConnection, bool], None],
        outbox: Outbox,
    ) -> None:
        self.endpoint = endpoint  #: as it was when this was opened
        self._outbox = outbox
        self.released = released  #: called with (self, reusable) when the exchange is over
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        # The parser puts headers and pieces of a body right where they belong: no call into
        # Python for each.
        self._headers: dict[bytes, bytes] = {}  #: and trailers, which nobody asked for
        self.on_header = self._headers.__setitem__
        self._arrived: list[bytes] = []
        self.on_body = self._arrived.append
        self._exchange: EngineExchange | None = None
        self._head: AnswerHead | None = None  #: of this answer, or of the one before
        self._head_of: dict[bytes, bytes] = {}  #: what it was made of
        self._repeated: RepeatedHead | None = None  #: which is likely to come again
        self._unlike = 0  #: heads in a row that were remembered in vain
        self._head_bytes = 0
        self._answered = False
        self._in_body = False
        self._keep = False
        self._over = False
        self._surplus = False
        self._reused = False
        self.usable = True  #: False: closed, or about to be
        self._is_held_back = False  #: we do not read, for want of a client who does
        self._paused = False
        self._unsent: memoryview | None = None
        self._unsent_at = 0

    # The exchange's side

    def send(self, exchange: EngineExchange, head: bytes, body: bytes | bytearray) -> None:
        """Start an exchange; its callbacks come later, never from within this call."""
        transport = self._transport
        self._exchange = exchange
        self._answered = False
        if transport is None or not self.usable:
            # The engine accepted and closed before we came to use the connection.
            asyncio.get_running_loop().call_soon(self._lose, EngineFailure.RESET)
            return
        if len(body) <= _SLICE:
            self._outbox.write(transport, head + body)
            return
        # A slow engine holds a large body back here, one slice at a time, instead of a
        # second copy of it filling the transport's buffer.
        transport.write(head)
        self._unsent = memoryview(body)
        self._unsent_at = 0
        self._send_slices(transport)

    def abandon(self) -> None:
        """Nobody wants the answer any more: cut the connection, which makes the engine stop."""
        self._exchange = None
        self._unsent = None
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close an idle connection."""
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    def pause(self) -> None:
        """Stop reading: the client does not keep up."""
        if self.usable and self._transport is not None:
            self._is_held_back = True
            self._transport.pause_reading()

    def resume(self) -> None:
        self._is_held_back = False
        if self.usable and self._transport is not None:
            self._transport.resume_reading()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Not before: it holds on to our methods, and a connection that never comes about is never
        # lost, which is where they part.
        self._parser = httptools.HttpResponseParser(self)
        notice_unreached(transport)
        _receive_little(transport)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._unsent is not None and self._transport is not None:
            self._send_slices(self._transport)

    def _send_slices(self, transport: asyncio.Transport) -> None:
        unsent = self._unsent
        while unsent is not None and not self._paused and self.usable:
            end = self._unsent_at + _SLICE
            transport.write(unsent[self._unsent_at : end])
            self._unsent_at = end
            if end >= len(unsent):
                self._unsent = unsent = None

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            # An idle engine has nothing to say: what comes now belongs to no request.
            self._surplus = True
            self.close()
            return
        is_new = not (self._answered or self._head_bytes)
        if is_new and self._repeated is not None and self._unsent is None:
            body = self._repeated.body(data)
            if body is not None and self._head is not None:
                self._unlike = 0
                self._head.length = len(body)
                self._exchange = None
                self._reused = True
                if self._is_held_back:
                    self.resume()
                self.released(self, self.usable)
                exchange.answer_whole(self._head, body)
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if not self._over:
                self._lose(EngineFailure.GARBLED)
                return
            self._surplus = True
        arrived = self._arrived
        if self._exchange is not exchange:
            arrived.clear()
            return  # abandoned meanwhile
        if self._over:
            self._repeated = self._remembered(data) if is_new else None
        if arrived:
            data = arrived[0] if len(arrived) == 1 else b"".join(arrived)
            arrived.clear()
            self._head_bytes = 0
            exchange.answer_data(data)
            if self._exchange is not exchange:
                return
        elif not self._over:
            # Of a head, or of sizes and trailers of chunks, which the parser keeps until they end.
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_LIMIT:
                self._lose(EngineFailure.GARBLED)
                return
        if self._over:
            self._conclude(exchange)

    def _remembered(self, data: bytes) -> RepeatedHead | None:
        """Return the head of an answer that came in this one read, if it may come again."""
        length = self._head.length if self._head is not None else None
        if length is None or self._surplus or not self._keep:
            return None
        self._unlike += 1
        if self._unlike > _UNLIKE_LIMIT and self._unlike % _UNLIKE_LIMIT:
            return None
        parts = RepeatedHead.parts(data, length)
        return None if parts is None else RepeatedHead(*parts)

    def eof_received(self) -> bool:
        # An answer without a length ends with its connection.
        exchange = self._exchange
        if exchange is not None and self._in_body and not self._is_framed:
            self._keep = False
            self._conclude(exchange)
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's name
        self.usable = False
        self._transport = None
        if self._exchange is not None:
            self._lose(EngineFailure.RESET)
        else:
            self.released(self, False)
        # It holds on to our methods: thousands that die at once would wait for the collector.
        del self._parser

    # httptools' side

    def on_message_begin(self) -> None:
        if self._over:
            # What follows the end of an answer would become the next request's answer.
            self._surplus = True
            raise ValueError("bytes after the end of the answer")

    def on_headers_complete(self) -> None:
        raw = self._headers
        status = self._parser.get_status_code()
        if self._over or status < 200:  # 100 and 103 come before the answer
            raw.clear()
            return
        self._head_bytes = 0
        self._answered = True
        self._in_body = True
        self._keep = self._parser.should_keep_alive()
        length = raw.pop(b"content-length", None) or raw.pop(b"Content-Length", None)
        head = self._head
        if head is None or raw != self._head_of or head.status != status:
            if len(raw) > _HEADER_COUNT_LIMIT:
                raise ValueError("too many headers")
            self._head_of = raw.copy()
            lowered = {name.lower(): value for name, value in raw.items()}
            length = length or lowered.pop(b"content-length", None)
            self._head = head = AnswerHead(status, lowered)
        raw.clear()
        head.length = int(length) if length is not None else None
        if self._exchange is not None:
            self._exchange.answer_head(head)

    def on_message_complete(self) -> None:
        if self._in_body:  # else it was a 1xx
            self._in_body = False
            self._over = True
        self._headers.clear()

    # The end

    @property
    def _is_framed(self) -> bool:
        return self._head is None or self._head.is_framed

    def _conclude(self, exchange: EngineExchange) -> None:
        # A whole answer to a half-sent request (413, say) leaves the connection out of step.
        reusable = self._keep and not self._surplus and self._unsent is None and self.usable
        self._exchange = self._unsent = None
        self._over = self._in_body = False
        self._head_bytes = 0
        self._reused = True
        if not reusable:
            self.close()
        elif self._is_held_back:
            # The end came with what its client has yet to read. The next client would wait for an
            # answer that nobody reads.
            self.resume()
        self.released(self, reusable)
        exchange.answer_end()

    def _lose(self, failure: EngineFailure) -> None:
        exchange, self._exchange = self._exchange, None
        stale = self._reused and not self._answered and failure is EngineFailure.RESET
        self._unsent = None
        self.usable = False
        if self._transport is not None:
            self._transport.abort()
        self.released(self, False)
        if exchange is not None:
            exchange.answer_lost(failure, stale=stale)
