"""Reads a client's requests with httptools, and refuses what its head or size forbids."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import httptools

from llmgw.errors import RequestError
from llmgw.logs import get_logger
from llmgw.router.front import refusals
from llmgw.router.front.front import Front
from llmgw.router.front.head import HEAD_LIMIT, HEADER_COUNT_LIMIT, new_request_id, read_head
from llmgw.router.front.upgrade import without_offer
from llmgw.router.ingress import Request
from llmgw.router.keys import KeyGrant

log = get_logger(__name__)

_ROOM_AT_ONCE = 4 * 1024 * 1024
"""A body up to this size gets its memory at once: growing piece by piece would copy it as often."""
_WORTH_FILLING = 64 * 1024
"""Of a body still to come. Below it another parser costs as much as is saved."""

Read = tuple[Request, KeyGrant | None] | RequestError
"""A complete request and the grant of its key, or why there will be no more requests."""


def _nobody() -> None:
    """Nobody is there to be invited."""


class RequestReader:
    """Puts what it has read into `read`, in order. Once it has refused, it is deaf."""

    __slots__ = (
        "_arrived",
        "_body_since",
        "_front",
        "_grant",
        "_head_bytes",
        "_in_body",
        "_invite_body",
        "_is_new",
        "_offered",
        "_parser",
        "_size",
        "incoming",
        "is_deaf",
        "is_proxied",
        "on_body",
        "peer",
        "read",
        "refused",
    )

    def __init__(self, front: Front, invite_body: Callable[[], None]) -> None:
        """invite_body: called when a client waits for a word before it sends the body."""
        self.peer = ""  #: address of whoever has connected
        self.is_proxied = False  #: that is a trusted proxy, and its requests are others'
        self.read: deque[Read] = deque()
        self.incoming: Request | None = None  #: has not come in whole
        self.refused: Request | None = None  #: what the refusal in `read` is about, if known
        self.is_deaf = False  #: what still arrives is thrown away
        self._front = front
        self._invite_body = invite_body
        # The parser appends pieces of a body right to the list: no call into Python for each.
        self._arrived: list[bytes] = []
        self.on_body = self._arrived.append
        self._parser = httptools.HttpRequestParser(self)
        self._grant: KeyGrant | None = None  #: of the incoming one
        self._offered: Request | None = None  #: offers another protocol; to be read again
        self._in_body = False
        self._is_new = False
        self._head_bytes = 0
        self._body_since = 0.0
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Read what has arrived."""
        before = len(self.read)
        rest = self._parse(data)
        while rest is not None:
            rest = self._parse_without_offer(rest)
        incoming = self.incoming
        if incoming is None or self.is_deaf:
            return
        if self._in_body and self._arrived:
            self._take_body(incoming)
            self._head_bytes = 0
            return
        # Of a head, or of sizes and trailers of chunks, which the parser keeps until they end. What
        # came behind the end of another request says nothing of how long this one's head is.
        self._is_new = not self._head_bytes
        self._head_bytes += len(data) if len(self.read) == before else 1
        if self._head_bytes > HEAD_LIMIT + len(data):
            self._refuse(refusals.head_too_large(f"more than {HEAD_LIMIT} bytes"))

    def rest_of_body(self) -> memoryview | None:
        """Return the memory for what is still to come of a body, where that is worth reading past the
        parser. Then only `body_grew` and `body_is_whole` are called until it has come."""
        incoming = self.incoming
        if incoming is None or not isinstance(incoming.body, bytearray):
            return None
        if len(incoming.body) != incoming.length or incoming.length - self._size < _WORTH_FILLING:
            return None
        return memoryview(incoming.body)[self._size :]

    def body_grew(self, count: int) -> None:
        """So many bytes more have come, past the parser."""
        self._size += count

    def body_is_whole(self) -> None:
        """The last of them has come. The parser still waits for them, so that another one goes on."""
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_complete()

    def end(self) -> None:
        """Be deaf for good, and hold on to nobody: else each connection waits for the collector."""
        self.is_deaf = True
        self._invite_body = _nobody
        del self._parser

    def patience_s(self) -> float | None:
        """Return how long the rest of `incoming` may take; None: what was said before holds."""
        limits = self._front.limits
        if not self._in_body:
            return limits.head_s if self._is_new else None
        # A body that drips fast enough to never be idle must still come at some pace.
        patience_s = limits.body_idle_s + self._size / limits.body_floor
        return min(limits.body_idle_s, self._body_since + patience_s - self._front.wheel.now)

    def _parse(self, data: bytes | memoryview) -> memoryview | None:
        """Have the parser read this; return what it left alone, behind an offer of another protocol."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return memoryview(data)[upgrade.args[0] :]
        except httptools.HttpParserCallbackError:
            # Ours, not the client's: a bug in one of the callbacks below.
            log.exception("reading a request failed")
            self._refuse(refusals.internal())
        except httptools.HttpParserError as error:
            if not self.is_deaf:
                self._refuse(refusals.malformed(error))
        return None

    def _parse_without_offer(self, rest: memoryview) -> memoryview | None:
        """Read a request that offers another protocol as if it did not, and what stands behind it.

        Java's client offers HTTP/2 with its first request, and the parser leaves everything
        behind such a head alone: so a new one reads the head again, without the offer.
        """
        offered, self._offered = self._offered, None
        if offered is None or self.is_deaf:
            return None
        if offered.method == b"CONNECT":
            # To the parser every CONNECT is an upgrade: read again, it would be one again.
            self._refuse(
                RequestError("CONNECT is for proxies, and this is none", code="invalid_http")
            )
            return None
        self._parser = httptools.HttpRequestParser(self)
        self._parse(without_offer(offered))
        return self._parse(rest) if rest else None

    # httptools' side

    def on_message_begin(self) -> None:
        self.incoming = Request()
        self.incoming.peer = self.peer
        self._in_body = False
        self._head_bytes = 0
        self._size = 0

    def on_url(self, url: bytes) -> None:
        if self.incoming is not None:
            self.incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        incoming = self.incoming
        if incoming is None or self._in_body:
            return  # trailers are dropped: nothing may pass as a header that was not checked
        name = name.lower()
        if name == b"content-length":
            incoming.length = int(value)
            return
        headers = incoming.headers
        headers.append((name, value))
        if len(headers) > HEADER_COUNT_LIMIT + 1:
            self._refuse(refusals.head_too_large(f"more than {HEADER_COUNT_LIMIT} headers"))

    def on_headers_complete(self) -> None:
        incoming = self.incoming
        if incoming is None or self.is_deaf:
            return
        self._in_body = True
        self._body_since = self._front.wheel.now
        parser = self._parser
        incoming.method = parser.get_method()
        incoming.is_http11 = parser.get_http_version() == "1.1"
        if parser.should_upgrade():
            self._offered, self.incoming = incoming, None
            return
        incoming.keep_alive = parser.should_keep_alive()
        incoming.path, _, incoming.query = incoming.target.partition(b"?")
        if self.is_proxied:
            incoming.peer = self._front.limits.proxies.client(self.peer, incoming.headers)
        refusal = read_head(incoming)
        incoming.request_id = incoming.given_id or new_request_id()
        refusal = refusal or self._refusal_by_head(incoming)
        if refusal is not None:
            self._refuse(refusal, incoming)

    def on_message_complete(self) -> None:
        incoming, self.incoming = self.incoming, None
        self._in_body = False
        if incoming is None or self.is_deaf:
            return
        if self._arrived:
            self._take_body(incoming)
            if self.is_deaf:
                return
        grant, self._grant = self._grant, None
        self.read.append((incoming, grant))

    # Judging

    def _refusal_by_head(self, incoming: Request) -> RequestError | None:
        """Say what can be said before the body has come."""
        front = self._front
        if incoming.content_encoding not in (None, b"identity"):
            return refusals.packed_body()
        if incoming.length is not None and incoming.length > front.limits.body_bytes:
            return refusals.body_too_large(front.limits.body_bytes)
        route = front.hot.get(incoming.path)
        if route is not None and incoming.method == b"POST" and front.ingress is not None:
            incoming.route = route
            try:
                self._grant = front.ingress.authorise(incoming)
            except RequestError as error:
                return error.with_traceback(None)  # its frames know it: a cycle
        if incoming.expects_continue:
            self._invite_body()
        return None

    def _take_body(self, incoming: Request) -> None:
        arrived = self._arrived
        piece = arrived[0] if len(arrived) == 1 else b"".join(arrived)
        arrived.clear()
        begin = self._size
        self._size = end = begin + len(piece)
        if self._size > self._front.limits.body_bytes:
            self._refuse(refusals.body_too_large(self._front.limits.body_bytes), incoming)
            return
        body, length = incoming.body, incoming.length
        if not begin and length is not None and end < length <= _ROOM_AT_ONCE:
            incoming.body = bytearray(length)
            incoming.body[:end] = piece
        elif not begin:
            incoming.body = piece
        elif isinstance(body, bytearray) and len(body) >= end:
            body[begin:end] = piece
        else:
            if isinstance(body, bytes):
                incoming.body = bytearray(body)
            incoming.body += piece

    def _refuse(self, error: RequestError, about: Request | None = None) -> None:
        """Have an error answered once everything before it has been; nothing comes after it."""
        if not self.is_deaf:
            self.is_deaf = True
            self.incoming = None
            self.refused = about
            self._arrived.clear()
            self.read.append(error)
