"""Where a server listens for agents, as people write it and as gRPC wants it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

# sockaddr_un.sun_path on Linux, its final NUL left out.
_MAX_SOCKET_PATH = 107


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port; always mutual TLS."""

    host: str  #: IP without brackets (perhaps with a zone), or a name
    port: int

    def __str__(self) -> str:
        """Return what people write, and gRPC dials or binds."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket file that only its owner can reach; no TLS."""

    path: str

    def __str__(self) -> str:
        """Return what people write, and gRPC dials or binds."""
        return f"unix:{self.path}"


ServerAddress = TcpAddress | UnixAddress


def parse_address(text: str) -> ServerAddress:
    """Read `HOST:PORT` (IPv6 in brackets) or `unix:/PATH`.

    Raises ValueError that says what would be right.
    """
    text = text.strip()
    if text.startswith("unix:"):
        return _unix(text.removeprefix("unix:"))
    wrong = (
        f"must be HOST:PORT such as 10.0.0.1:8082 or [fd00::1]:8082, or unix:/PATH, got {text!r}"
    )
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{wrong}: {host!r} is no IPv6 address") from None
    elif ":" in host:
        raise ValueError(f"{wrong}: put an IPv6 address in brackets")
    if not colon or not host or "/" in host or not (port.isascii() and port.isdigit()):
        raise ValueError(wrong)
    if int(port) > 65535:
        raise ValueError(f"must have a port from 0 to 65535, got {text!r}")
    return TcpAddress(host, int(port))


def parse_servers(text: str) -> tuple[ServerAddress, ...]:
    """Read a comma-separated list for dialling, in order, each once. Raises ValueError."""
    found = dict.fromkeys(parse_address(part) for part in text.split(",") if part.strip())
    if not found:
        raise ValueError("must name at least one server, such as 10.0.0.1:8082")
    for address in found:
        if isinstance(address, TcpAddress) and address.port == 0:
            raise ValueError(f"must have a port from 1 to 65535, got {str(address)!r}")
    return tuple(found)


def _unix(path: str) -> UnixAddress:
    if not path.startswith("/"):
        raise ValueError(f"must be unix:/PATH with an absolute path, got {'unix:' + path!r}")
    if len(path.encode()) > _MAX_SOCKET_PATH:
        raise ValueError(
            f"must be at most {_MAX_SOCKET_PATH} bytes, which is all that a socket's path may "
            f"have, got {len(path.encode())}: {path}"
        )
    return UnixAddress(path)
