"""Noticing clients that vanished without a word.

Without these options a client whose machine lost power kept its engine's slot for minutes:
TCP_USER_TIMEOUT acts while bytes to it are unacknowledged, keep-alive probes while there are
none.
"""

from __future__ import annotations

import asyncio
import socket

_OPTIONS = tuple(
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 30_000),  # milliseconds
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    )
    if hasattr(socket, name)  # macOS lacks some
)


def notice_vanished(transport: asyncio.BaseTransport) -> None:
    """Have the kernel end a connection whose client is no longer there, within 30 s."""
    peer = transport.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for level, option, value in _OPTIONS:
        peer.setsockopt(level, option, value)
