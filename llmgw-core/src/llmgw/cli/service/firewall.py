"""The firewall of a node: its ports are open to routers and to other nodes, and to no others.

Several engines have ports that ask for no key: ranks find each other, caches are handed over,
sleep is ordered. On loopback that is nobody's business; beyond, this file makes it so. Where the
agent gives weights a certificate is asked for, but whoever has none has no business there either.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from llmgw.errors import ConfigError, Problem

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def render(sources: Sequence[str], *, ports: tuple[int, int], weights_port: int) -> str:
    """Return an nftables file. sources: addresses or networks that may reach the ports.

    ports: of engines, first and last. weights_port: of the agent, where other nodes come.

    Raises ConfigError naming what is no address, or that nobody could reach the engines.
    """
    networks, problems = _networks(sources)
    if not sources:
        problems.append(
            Problem(path="--allow", message="must name the routers and the other nodes at least")
        )
    if not 1 <= ports[0] <= ports[1] <= 65535:
        problems.append(Problem(path="--ports", message=f"must be FIRST-LAST, got {ports}"))
    if not 1 <= weights_port <= 65535:
        problems.append(
            Problem(path="--weights-port", message=f"must be 1 to 65535, got {weights_port}")
        )
    if problems:
        raise ConfigError("llmgw service firewall", problems)
    tcp = "tcp dport { $engines, $weights }"
    allowed = [
        f"        {family} saddr {{ {', '.join(str(item) for item in of)} }} {tcp} accept"
        for family, version in (("ip", 4), ("ip6", 6))
        if (of := [item for item in networks if item.version == version])
    ]
    return "\n".join(
        (
            "#!/usr/sbin/nft -f",
            "# Made by `llmgw service firewall`. Only these may reach this node's engines and weights.",
            f"define engines = {ports[0]}-{ports[1]}",
            f"define weights = {weights_port}",
            "",
            "table inet llmgw",  # so that the next line is no error the first time
            "delete table inet llmgw",
            "table inet llmgw {",
            "    chain node {",
            "        type filter hook input priority filter; policy accept;",
            '        iif "lo" accept',
            *allowed,
            f"        {tcp} drop",
            "        udp dport $engines drop",
            "    }",
            "}",
            "",
        )
    )


def _networks(sources: Sequence[str]) -> tuple[list[Network], list[Problem]]:
    found: list[Network] = []
    problems: list[Problem] = []
    for source in sources:
        try:
            found.append(ipaddress.ip_network(source))
        except ValueError as error:
            problems.append(Problem(path="--allow", message=str(error)))
    return sorted(set(found), key=lambda item: (item.version, item)), problems
