"""Heads that come again byte for byte, their declared length aside.

A client sends the same head with every request of a connection. What was read of it, refused
or granted, stays true for as long as keys do not change; only the body is new.
"""

from __future__ import annotations

from llmgw.router.ingress import Request
from llmgw.router.keys import KeyGrant

_LENGTH = b"\r\ncontent-length:"
_END = b"\r\n\r\n"
_DIGITS = 12


class RepeatedHead:
    """A head that was read with the parser, found in order, and led to this request."""

    __slots__ = ("_after", "_before", "generation", "grant", "request")

    def __init__(
        self, before: bytes, after: bytes, request: Request, grant: KeyGrant, generation: int
    ) -> None:
        self._before = before  #: up to the colon of `content-length:`
        self._after = after  #: from the end of that line
        self.request = request  #: to be answered again, with another body
        self.grant = grant
        self.generation = generation  #: of the keys

    @staticmethod
    def of(data: bytes, request: Request, grant: KeyGrant, generation: int) -> RepeatedHead | None:
        """Remember the head of a request that came in one read, alone; None if it did not."""
        end = data.find(_END) + len(_END)
        lowered = data[:end].lower()
        start = lowered.find(_LENGTH) + len(_LENGTH)
        is_alone = request.length is not None and len(data) == end + request.length
        if not is_alone or lowered.count(_LENGTH) != 1 or request.expects_continue:
            return None
        return RepeatedHead(
            data[:start], data[data.index(b"\r\n", start) : end], request, grant, generation
        )

    def body(self, data: bytes) -> bytes | None:
        """Return the body of a request that is nothing but this head and its whole body."""
        if not data.startswith(self._before):
            return None
        start = len(self._before)
        end = data.find(b"\r", start, start + _DIGITS)
        length = data[start:end].strip(b" ")
        if end < 0 or not length.isdigit() or not data.startswith(self._after, end):
            return None
        begin = end + len(self._after)
        return data[begin:] if len(data) - begin == int(length) else None
