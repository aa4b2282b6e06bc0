"""A request as the front has read it from the socket."""

from __future__ import annotations

from llmgw.router.routes import Route


class Request:
    """Head and body of one request. Filled by the front while it reads."""

    __slots__ = (
        "body",
        "content_encoding",
        "content_type",
        "credentials",
        "expects_continue",
        "given_id",
        "headers",
        "is_http11",
        "keep_alive",
        "length",
        "method",
        "origin",
        "passed",
        "path",
        "peer",
        "priority",
        "profile",
        "query",
        "request_id",
        "route",
        "target",
        "wants_reasons",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""  #: as sent
        self.path = b""
        self.query = b""
        self.is_http11 = True
        self.keep_alive = True
        self.headers: list[tuple[bytes, bytes]] = []  #: names in lower case; the length aside
        self.route: Route | None = None  #: None: not answered by an engine
        self.credentials: list[bytes] = []  #: every header that may carry a key
        self.passed = b""  #: headers that engines may see, serialised
        self.content_type = b""
        self.content_encoding: bytes | None = None
        self.expects_continue = False
        self.length: int | None = None  #: declared; None: in chunks, or none
        self.given_id = b""  #: request id by the client
        self.request_id = b""
        self.origin: bytes | None = None
        self.priority: str | None = None
        self.profile: str | None = None
        self.wants_reasons = False
        self.peer = ""  #: address of the client, as far as it is known
        self.body: bytes | bytearray = b""

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header."""
        for key, value in self.headers:
            if key == name:
                return value
        return None
