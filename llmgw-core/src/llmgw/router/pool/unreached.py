"""Noticing requests that reach no machine.

Without this option a request on a kept connection whose engine's machine had dropped off the
network waited out the limit of the first byte, a minute, before it was tried elsewhere.
"""

from __future__ import annotations

import asyncio
import socket

_LIMIT_MS = 5_000
"""The kernel of the engine's machine acknowledges a request at once, however busy the engine is."""


def notice_unreached(transport: asyncio.BaseTransport) -> None:
    """Have the kernel reset a connection whose bytes nobody has acknowledged for 5 s.

    An answer that pauses is not affected: while it comes, nothing of ours waits for a receipt.
    """
    engine = transport.get_extra_info("socket")
    if engine is None or engine.family not in (socket.AF_INET, socket.AF_INET6):
        return
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        engine.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LIMIT_MS)
