"""Listening addresses as people write them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

_WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port to listen on; port 0 lets the system choose."""

    host: str  #: IP without brackets, or a name
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `HOST:PORT`, with IPv6 in brackets. Raises ValueError that says what would be right."""
        host, colon, port = text.strip().rpartition(":")
        wrong = f"must be HOST:PORT such as 127.0.0.1:8080 or [::1]:8080, got {text!r}"
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            if not _is_ip(host, 6):
                raise ValueError(f"{wrong}: {host!r} is no IPv6 address")
        elif ":" in host:
            raise ValueError(f"{wrong}: put an IPv6 address in brackets")
        if not colon or not host or not (port.isascii() and port.isdigit()):
            raise ValueError(wrong)
        if int(port) > 65535:
            raise ValueError(f"must have a port from 0 to 65535, got {text!r}")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        return _is_ip(self.host) and ipaddress.ip_address(self.host).is_loopback

    def overlaps(self, other: Address) -> bool:
        """Whether both cannot be bound at once."""
        if self.port == 0 or self.port != other.port:
            return False
        hosts = {"127.0.0.1" if host == "localhost" else host for host in (self.host, other.host)}
        return len(hosts) == 1 or any(host in _WILDCARDS for host in hosts)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def network(text: str) -> str:
    """Read a network such as 10.0.0.0/8, or one address. Raises ValueError that says what is right."""
    try:
        return str(ipaddress.ip_network(text.strip()))
    except ValueError as error:
        raise ValueError(f"must be a network such as 10.0.0.0/8, got {text!r}: {error}") from None


def _is_ip(text: str, version: int | None = None) -> bool:
    try:
        return version in (None, ipaddress.ip_address(text).version)
    except ValueError:
        return False
