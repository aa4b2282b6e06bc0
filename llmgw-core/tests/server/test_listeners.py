"""Sockets are bound all or not at all, and the one that cannot be is named."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from llmgw.config.addresses import Address
from llmgw.errors import ConfigError
from llmgw.server.listeners import address_of, bound, check_free, listen


def test_port_0_becomes_a_port_and_every_socket_is_closed_at_the_end() -> None:
    with bound({"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}) as sockets:
        api = address_of(sockets["listen"])
        assert api.port > 0
        assert api != address_of(sockets["admin_listen"])
        socket.create_connection((api.host, api.port)).close()
    assert all(one.fileno() == -1 for one in sockets.values())


def test_ipv6_is_bound_and_printed_in_brackets() -> None:
    with bound({"listen": "[::1]:0"}) as sockets:
        assert str(address_of(sockets["listen"])).startswith("[::1]:")


def test_an_address_in_use_is_named_with_the_way_out_and_the_others_are_released() -> None:
    with listen(Address("127.0.0.1", 0)) as taken, listen(Address("127.0.0.1", 0)) as spare:
        busy, free = address_of(taken), address_of(spare)
        spare.close()
        with (
            pytest.raises(ConfigError) as raised,
            bound({"listen": str(free), "admin_listen": str(busy)}),
        ):
            pass
        said = "stop what listens there, or choose another by --admin-listen"
        assert [str(problem) for problem in raised.value.problems] == [
            f"admin_listen: {busy} is already in use; {said}"
        ]
        listen(free).close()


def test_every_address_that_cannot_be_bound_is_named_at_once() -> None:
    with listen(Address("127.0.0.1", 0)) as taken:
        busy = str(address_of(taken))
        with pytest.raises(ConfigError) as raised, bound({"listen": busy, "admin_listen": busy}):
            pass
    assert [problem.path for problem in raised.value.problems] == ["listen", "admin_listen"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("192.0.2.1:0", "is no address of this machine"),
        ("no-such-host.invalid:0", "is not known"),
    ],
)
def test_an_address_of_another_machine_says_so(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said), bound({"listen": text}):
        pass


def test_the_protocol_of_a_socket_is_tcp_so_that_asyncio_turns_nagle_off() -> None:
    with bound({"listen": "127.0.0.1:0"}) as sockets:
        assert sockets["listen"].proto == socket.IPPROTO_TCP


def test_a_unix_socket_that_nobody_listens_on_is_removed_and_a_live_one_is_an_error(
    tmp_path: Path,
) -> None:
    path = tmp_path / "agents.sock"
    check_free("agent_listen", f"unix:{path}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(ConfigError, match="already in use"):
            check_free("agent_listen", f"unix:{path}")
    check_free("agent_listen", f"unix:{path}")
    assert not path.exists()
