"""What is written during one turn of the event loop, sent together at its end.

A write wakes whoever sleeps at the other end of its socket, and that costs more than the rest of
the write. Of many that go out one right after the other only the first has somebody to wake.
"""

from __future__ import annotations

import asyncio

from llmgw.logs import get_logger

log = get_logger(__name__)


class Outbox:
    """Writes in their order. Whoever writes to a socket otherwise, or closes it, flushes first."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Have this sent before the loop waits again."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append((transport, data))

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
