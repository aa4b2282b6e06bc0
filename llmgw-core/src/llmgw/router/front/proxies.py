"""Who the client is, where it comes through somebody else's proxy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network


class Proxies:
    """Networks whose `X-Forwarded-For` is believed."""

    def __init__(self, networks: Sequence[str] = ()) -> None:
        """networks: as `router.trusted_proxies`, valid."""
        self._networks = tuple(ip_network(text) for text in networks)

    def trusts(self, address: str) -> bool:
        """Say whether this address is one of a trusted proxy."""
        if not self._networks:
            return False
        found = _address_in(address)
        return found is not None and any(found in network for network in self._networks)

    def client(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the address of the client on whose behalf a trusted proxy asks.

        Each proxy writes behind the others whom it was asked by. So the list is read from its end
        up to the first address that is no trusted proxy; what stands before that one, anybody may
        have written.
        """
        told = [
            item
            for name, value in headers
            if name == b"x-forwarded-for"
            for item in value.decode("latin-1").split(",")
        ]
        client = peer
        for item in reversed(told):
            address = _address_in(item.strip())
            if address is None:
                break
            client = str(address)
            if not self.trusts(client):
                break
        return client


NOBODY = Proxies()


def _address_in(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address in a text that may have a port or a scope; None if there is none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
