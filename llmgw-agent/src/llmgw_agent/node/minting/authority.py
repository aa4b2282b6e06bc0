"""Finds out which authority stands behind a server, and believes it only if the pin agrees."""

from __future__ import annotations

import socket

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL

from llmgw.contracts.join import SERVER_NAME
from llmgw.contracts.joinproof import key_pin
from llmgw.errors import PermanentError, TransientError
from llmgw_agent.wire.addresses import TcpAddress

_LIMIT_S = 10.0


def fetch_authority(server: TcpAddress, pin: str) -> bytes:
    """Return the PEM of the server's authority whose key has this pin. Blocks up to 10 s.

    Only the public chain is read, and nothing is sent that an impostor could use; gRPC then
    trusts this authority alone. Raises TransientError if there is no server, PermanentError if
    it is another cluster's.
    """
    for certificate in _chain(server):
        if key_pin(certificate) == pin:
            return certificate.public_bytes(Encoding.PEM)
    raise PermanentError(
        f"the server at {server} is not the one that made the join token (its authority has "
        "another key): check the address, or make a new token there"
    )


def _chain(server: TcpAddress) -> list[x509.Certificate]:
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_verify(SSL.VERIFY_NONE)  # by the pin, above
    context.set_alpn_protos([b"h2"])
    connection = SSL.Connection(context, None)
    connection.set_tlsext_host_name(SERVER_NAME.encode())
    connection.set_connect_state()
    try:
        with socket.create_connection((server.host, server.port), timeout=_LIMIT_S) as stream:
            _shake_hands(connection, stream)
    except OSError as error:
        raise TransientError(f"no server at {server}: {error.strerror or error}") from None
    except SSL.Error:
        raise TransientError(f"what listens at {server} speaks no TLS") from None
    return connection.get_peer_cert_chain(as_cryptography=True) or []


def _shake_hands(connection: SSL.Connection, stream: socket.socket) -> None:
    while True:
        try:
            connection.do_handshake()
        except SSL.WantReadError:
            stream.sendall(connection.bio_read(1 << 16))
            data = stream.recv(1 << 16)
            if not data:
                raise ConnectionResetError("it closed the connection") from None
            connection.bio_write(data)
        else:
            return
