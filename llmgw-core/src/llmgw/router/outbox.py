"""What is written during one turn of the event loop, sent together at its end.

A write wakes whoever sleeps at the other end of its socket, and that costs more than the rest of
the write. Of many that go out one right after the other only the first has somebody to wake.
"""

from __future__ import annotations

import asyncio

from llmgw.logs import get_logger

log = get_logger(__name__)

_FEW = 4
_NEXT_LOOK = 64
"""Waiting for the end of a turn costs 14 us. Where a turn had few writes, so many go out at once
before it is tried again: a single client then pays nothing."""


class Outbox:
    """Writes in their order. Whoever writes to a socket otherwise, or closes it, flushes first."""

    __slots__ = ("_alone", "_waiting", "_writes")

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []
        self._writes = 0  #: of this turn
        self._alone = 0  #: writes still to be sent at once

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Have this sent before the loop waits again."""
        if self._alone:
            self._alone -= 1
            transport.write(data)
            return
        if not self._writes:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._writes += 1
        self._waiting.append((transport, data))

    def _end_turn(self) -> None:
        if self._writes < _FEW:
            self._alone = _NEXT_LOOK
        self._writes = 0
        self.flush()

    def flush(self) -> None:
        """Send what waits; what is for connections that have ended since is dropped."""
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if not transport.is_closing():
                try:
                    transport.write(data)
                except Exception:
                    # One connection's bug must not keep every other one's answer back.
                    log.exception("a write failed")
