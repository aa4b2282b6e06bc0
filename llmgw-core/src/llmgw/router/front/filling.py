"""The rest of a large body, read from the socket right into the memory where it is kept.

Fed to the parser each piece is copied three times on its way there, which is a fifth of all that a
prompt of 1 MB costs.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Filled(Protocol):
    """The connection, as its body sees it. What is not here goes on to it under asyncio's names."""

    def body_grew(self, count: int) -> None: ...

    def body_is_whole(self) -> None: ...

    def eof_received(self) -> bool: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class Filling(asyncio.BufferedProtocol):
    """Stands in for a connection until the last byte of a body has come. It has no room for one more,
    so that what follows the body is left to the parser."""

    __slots__ = ("_connection", "_rest")

    def __init__(self, connection: Filled, rest: memoryview) -> None:
        """rest: never empty."""
        self._connection = connection
        self._rest = rest

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's name
        return self._rest

    def buffer_updated(self, nbytes: int) -> None:
        self._rest = self._rest[nbytes:]
        self._connection.body_grew(nbytes)
        if not self._rest:
            self._connection.body_is_whole()

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
