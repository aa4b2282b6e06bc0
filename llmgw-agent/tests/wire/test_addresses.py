"""Addresses as people write them (C044)."""

from __future__ import annotations

import pytest

from llmgw_agent.wire.addresses import TcpAddress, UnixAddress, parse_address, parse_servers


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:8082", TcpAddress("10.0.0.1", 8082)),
        (" gpu-01.example:8082 ", TcpAddress("gpu-01.example", 8082)),
        ("[::1]:0", TcpAddress("::1", 0)),
        ("[fd00::5]:8082", TcpAddress("fd00::5", 8082)),
        ("[fe80::1%eth0]:8082", TcpAddress("fe80::1%eth0", 8082)),
        ("unix:/run/llmgw/agents.sock", UnixAddress("/run/llmgw/agents.sock")),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, address: object) -> None:
    assert parse_address(text) == address
    assert str(address) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8082",
        ":8082",
        "host",
        "host:",
        "host:port",
        "host:-1",
        "host:٣",
        "host:65536",
        "::1:8082",
        "[::1]",
        "[10.0.0.1]:80",
        "http://host:80",
        "unix:",
        "unix:relative",
        "unix:/" + "x" * 107,
    ],
)
def test_what_is_no_address_says_what_would_be_right(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_address(text)


def test_a_list_of_servers_keeps_its_order_and_names_each_once() -> None:
    assert parse_servers("a:1, [::1]:2,a:1,") == (TcpAddress("a", 1), TcpAddress("::1", 2))


@pytest.mark.parametrize("text", ["", " , ", "a:0"])
def test_a_list_without_a_server_that_can_be_dialled_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_servers(text)
