"""Noticing clients that vanished without a word, and dropping those that do not read.

Without these options a client whose machine lost power kept its engine's slot for minutes:
TCP_USER_TIMEOUT acts while bytes to it are unacknowledged, keep-alive probes while there are
none. And without a bound the kernel takes up to 4 MB (`tcp_wmem`) for each client that does not
read, and so long it is not known to be slow.
"""

from __future__ import annotations

import asyncio
import socket
import struct

_OPTIONS = tuple(
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 30_000),  # milliseconds
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        # Bytes not sent yet; what is on its way is bounded by the client's own window.
        (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", 128 * 1024),
    )
    if hasattr(socket, name)  # macOS lacks some
)


def notice_vanished(transport: asyncio.BaseTransport) -> None:
    """Have the kernel end a connection whose client is no longer there, within 30 s, and hold little
    for one that does not read."""
    peer = transport.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for level, option, value in _OPTIONS:
        peer.setsockopt(level, option, value)


_AT_ONCE = struct.pack("ii", 1, 0)  # linger: on, for 0 s


def drop(transport: asyncio.Transport) -> None:
    """Reset a connection. Closed in the usual way, the kernel would hold megabytes for a client
    that does not read, and offer them to it for 30 s more."""
    peer = transport.get_extra_info("socket")
    if peer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()
