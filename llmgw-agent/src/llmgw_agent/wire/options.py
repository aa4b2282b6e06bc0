"""How both ends hold a connection (docs/reliability.md): the figures were measured, not guessed."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 4 << 20
"""gRPC ends a stream on a larger one; the codec never makes one (`codec.parts.MAX_MESSAGE`)."""

_BOTH: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Without this one a frozen peer was noticed after 70 s instead of 15 s.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_BOTH,
    # Without it the server ends the stream as `too_many_pings` (C041).
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # A taken port is an error, not a second listener that gets every other connection.
    ("grpc.so_reuseport", 0),
    # Streams move to whichever server has joined since; gRPC spreads this by 10 % itself. The
    # grace ends them, since a session would otherwise never end by itself.
    ("grpc.max_connection_age_ms", 12 * 3600 * 1000),
    ("grpc.max_connection_age_grace_ms", 5_000),
)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_BOTH,
    # Calls between our own parts ignore proxies, whatever the environment says (C010).
    ("grpc.enable_http_proxy", 0),
    # A new channel must be a new connection: it picks up new certificates.
    ("grpc.use_local_subchannel_pool", 1),
    # Limit of one attempt to connect (the default is 20 s). Packets that vanish would otherwise
    # hold an agent back for longer than the 35 s in which it must be back after a partition.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Reconnecting is the link's own business, with its own backoff.
    ("grpc.enable_retries", 0),
)
