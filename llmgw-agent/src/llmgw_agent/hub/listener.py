"""Where agents connect: a TCP address with mutual TLS, or a socket file."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio

from llmgw.contracts.trust import NodeTrust, ServerIdentity
from llmgw.errors import ConfigError, LlmgwError, Problem
from llmgw.logs import get_logger
from llmgw_agent.wire.addresses import ServerAddress, TcpAddress, UnixAddress

log = get_logger(__name__)


def listen(
    server: grpc.aio.Server, address: ServerAddress, credentials: grpc.ServerCredentials | None
) -> ServerAddress:
    """Bind and return the address with the port that the system chose.

    credentials: for TCP. Raises ConfigError naming the address and the reason.
    """
    if isinstance(address, UnixAddress):
        return _listen_unix(server, address)
    if credentials is None:
        raise ValueError("agents are never served over TCP without TLS")
    # gRPC says "failed to bind" and keeps the reason to itself.
    with suppress(OSError):
        _try_tcp(address)
    try:
        port = server.add_secure_port(str(address), credentials)
    except RuntimeError:
        raise _unusable(address, "cannot be bound") from None
    return TcpAddress(address.host, port)


def unlink_socket(address: ServerAddress) -> None:
    """Remove the socket file of a listener that has stopped."""
    if isinstance(address, UnixAddress):
        with suppress(OSError):
            Path(address.path).unlink()


def credentials_of(trust: NodeTrust, first: ServerIdentity) -> grpc.ServerCredentials:
    """Return credentials that ask `trust` anew at each handshake, so that rotation needs no restart.

    first: what `trust` says now, asked off the event loop.
    """
    return grpc.dynamic_ssl_server_credentials(
        _configuration(first),
        _fetcher(trust, first),  # type: ignore[arg-type] # the stubs leave out None: "as before"
        require_client_authentication=True,
    )


def _fetcher(
    trust: NodeTrust, first: ServerIdentity
) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
    known = first

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called on a thread of gRPC's; None keeps what it has, cheaper than loading it again."""
        nonlocal known
        try:
            identity = trust.server_identity()
        except LlmgwError as error:
            log.warning("certificates cannot be read, keeping the last ones", reason=str(error))
            return None
        if identity == known:
            return None
        known = identity
        return _configuration(identity)

    return fetch


def _configuration(identity: ServerIdentity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(identity.private_key.reveal().encode(), identity.certificate_chain)],
        root_certificates=identity.client_roots,
    )


def _try_tcp(address: TcpAddress) -> None:
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise _unusable(address, f"host {address.host!r} is not known: {error.strerror}") from None
    for family, kind, _, _, target in found:
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(target)
                probe.listen(1)
            except OSError as error:
                raise _unusable(address, os.strerror(error.errno or errno.EIO)) from None


def _listen_unix(server: grpc.aio.Server, address: UnixAddress) -> UnixAddress:
    path = Path(address.path)
    if not path.parent.is_dir():
        raise _unusable(address, f"folder {path.parent} does not exist")
    _remove_stale(address)
    # From the first moment on: a mode set afterwards would leave a gap for other users.
    previous = os.umask(0o177)
    try:
        server.add_insecure_port(str(address))
    except RuntimeError:
        raise _unusable(address, "cannot be bound; is its folder writable?") from None
    finally:
        os.umask(previous)
    return address


def _remove_stale(address: UnixAddress) -> None:
    """Remove a socket file that nobody listens on; anything else there is an error."""
    path = Path(address.path)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise _unusable(address, "there is a file which is no socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise _unusable(address, os.strerror(error.errno or errno.EIO)) from None
    raise _unusable(address, "another server listens there; stop it first")


def _unusable(address: ServerAddress, reason: str) -> ConfigError:
    return ConfigError(
        "agent_listen", [Problem(path="agent_listen", message=f"{address}: {reason}")]
    )
