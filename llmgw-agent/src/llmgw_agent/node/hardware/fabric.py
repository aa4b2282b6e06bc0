"""Fabrics that can be seen from the node: InfiniBand and RoCE ports. The rest is told by flag.

And the addresses of its network interfaces, one of which a fabric may be reached by.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_PORTS = Path("/sys/class/infiniband")
_INET6 = Path("/proc/net/if_inet6")
_SIOCGIFADDR = 0x8915
_GLOBAL = "00"


def fabric_labels(ports: Path = _PORTS) -> dict[str, str]:
    """Return labels such as `{"ib": "fe80000000000000"}`: equal subnet, joined by InfiniBand.

    For InfiniBand the subnet prefix that its manager gave; two subnets with the factory's
    prefix look like one, which only a label given by flag can tell apart. `roce` says that
    there is an active port, not who is behind it. {}: nothing is active.
    """
    labels: dict[str, str] = {}
    for state in sorted(ports.glob("*/ports/*/state")):
        port = state.parent
        if "ACTIVE" not in _read(state):
            continue
        if _read(port / "link_layer") == "InfiniBand":
            prefix = _read(port / "gids" / "0").replace(":", "")[:16]
            labels.setdefault("ib", prefix or "unknown")
        else:
            labels.setdefault("roce", "active")
    return labels


def interface_addresses(inet6: Path = _INET6) -> dict[str, str]:
    """Return `{"<interface>.address": address}` of each interface but loopback that has one.

    Its first IPv4 address, or else its first IPv6 one that is valid beyond the link. In the form
    of fabric labels, so that one may be named like any other fabric's.
    """
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has no IPv4 address
            found[name] = socket.inet_ntoa(answer[20:24])
    for line in _read(inet6).splitlines():
        digits, _, _, scope, _, name = line.split()
        if scope == _GLOBAL:
            found.setdefault(name, str(ipaddress.IPv6Address(int(digits, 16))))
    return {
        f"{name}.address": address
        for name, address in sorted(found.items())
        if not ipaddress.ip_address(address).is_loopback
    }


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
