"""The head of an engine's answer."""

from __future__ import annotations

from collections.abc import Mapping


class AnswerHead:
    """Status and headers of an answer; names in lower case, one value each.

    An engine's next answer on a connection mostly has the same head, its length aside. Then it
    is the same object, with the new length: whoever needs that later has to note it.
    """

    __slots__ = (
        "coding",
        "content_type",
        "headers",
        "is_chunked",
        "is_json",
        "length",
        "shown",
        "status",
    )

    def __init__(
        self, status: int, headers: Mapping[bytes, bytes], *, length: int | None = None
    ) -> None:
        self.status = status
        self.headers = headers
        self.length = length  #: of the body; None: not declared
        self.content_type = headers.get(b"content-type", b"")
        self.coding = headers.get(b"content-encoding", b"")
        self.is_chunked = b"transfer-encoding" in headers
        self.is_json = status < 400 and b"json" in self.content_type and not self.coding
        """Whether it is an answer, and no error, that can be read as it is."""
        self.shown: bytes | None = None  #: what clients see of it, once worked out

    @property
    def is_framed(self) -> bool:
        """Whether the end of the answer can be told from a connection that broke."""
        return self.is_chunked or self.length is not None
