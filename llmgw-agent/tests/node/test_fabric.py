"""Fast links that can be seen, and the addresses to meet at."""

from __future__ import annotations

import socket
from pathlib import Path

from llmgw_agent.node.hardware.fabric import fabric_labels, interface_addresses


def test_active_ports_become_fabric_labels(tmp_path: Path) -> None:
    for port, state, layer in (
        ("mlx5_0", "4: ACTIVE", "InfiniBand"),
        ("mlx5_1", "1: DOWN", "InfiniBand"),
        ("mlx5_2", "4: ACTIVE", "Ethernet"),
    ):
        folder = tmp_path / port / "ports" / "1"
        (folder / "gids").mkdir(parents=True)
        (folder / "state").write_text(state)
        (folder / "link_layer").write_text(layer)
        (folder / "gids" / "0").write_text("fe80:0000:0000:0001:0002:c903:0000:1234")
    assert fabric_labels(tmp_path) == {"ib": "fe80000000000001", "roce": "active"}
    assert fabric_labels(tmp_path / "none") == {}


def test_the_addresses_of_interfaces_are_those_that_this_machine_has(tmp_path: Path) -> None:
    inet6 = tmp_path / "if_inet6"
    inet6.write_text(
        "fe80000000000000000000000000beef 03 40 20 80     far0\n"
        "20010db8000000000000000000000007 03 40 00 80     far0\n"
        "20010db8000000000000000000000008 03 40 00 80     far0\n"
        "00000000000000000000000000000001 01 80 10 80       lo\n"
    )
    found = interface_addresses(inet6)
    assert found.pop("far0.address") == "2001:db8::7"
    assert "lo.address" not in found
    for address in found.values():
        with socket.socket(socket.AF_INET) as listening:
            listening.bind((address, 0))
