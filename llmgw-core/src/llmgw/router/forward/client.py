"""The client's connection, as an exchange sees it."""

from __future__ import annotations

from typing import Protocol

from llmgw.router.replies import Reply
from llmgw.router.timers import Deadline


class Client(Protocol):
    """Where an answer goes. Nothing here waits; a slow reader is reported to the exchange."""

    @property
    def deadline(self) -> Deadline:
        """The connection's one deadline; while an exchange runs it is the exchange's."""
        ...

    @property
    def is_paused(self) -> bool:
        """True while the client does not read and buffers are full."""
        ...

    def head(self, status: int, headers: bytes, length: int | None) -> bytes:
        """Return the head of an answer. length None: in pieces, framed by `piece`."""
        ...

    def piece(self, data: bytes) -> bytes:
        """Return data framed as this client can read it."""
        ...

    def write(self, data: bytes) -> None:
        """Write data now; what else is written goes out at the end of the loop's turn."""
        ...

    def write_whole(self, status: int, headers: bytes, body: bytes) -> None:
        """Write an answer of known length, its head included."""
        ...

    def write_piece(self, data: bytes) -> None:
        """Write data framed by `piece`."""
        ...

    def finish(self, *, ended: bool) -> None:
        """The answer is complete. ended: it was sent in pieces, whose end is still to be told."""
        ...

    def cut(self) -> None:
        """Close after what was written, leaving out the regular end (C015)."""
        ...

    def reply(self, reply: Reply) -> None:
        """Send a whole answer and finish."""
        ...
