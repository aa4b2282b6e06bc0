"""Channels to a server: each is a new connection."""

from __future__ import annotations

import grpc
import grpc.aio

from llmgw.contracts.join import SERVER_NAME
from llmgw_agent.wire.addresses import TcpAddress, UnixAddress
from llmgw_agent.wire.options import CHANNEL_OPTIONS


def secure_channel(server: TcpAddress, credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
    """Return a channel that checks for the name which every server's certificate has."""
    return grpc.aio.secure_channel(
        str(server),
        credentials,
        options=(*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", SERVER_NAME)),
    )


def socket_channel(server: UnixAddress) -> grpc.aio.Channel:
    """Return a channel over a socket file, whose owner is the proof."""
    return grpc.aio.insecure_channel(str(server), options=CHANNEL_OPTIONS)
