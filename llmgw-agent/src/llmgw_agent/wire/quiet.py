"""Keeps gRPC's own log off our standard error. Imports no gRPC: it must run before that."""

from __future__ import annotations

import os


def quiet_grpc() -> None:
    """Let gRPC's core say nothing, unless the environment asks for more.

    It would print each refused handshake and failed connection in a form of its own; the same
    facts are in our log, once a minute and in an operator's words.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
