"""A listener that cannot be had says which, and why; a socket file is its owner's alone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import anyio
import grpc.aio
import pytest

from llmgw.clock import SystemClock
from llmgw.contracts.dispatch import DispatcherContext
from llmgw.domain.ids import NodeId, SessionId
from llmgw.domain.reports import Heartbeat, Registration, Rejection, ShardReport
from llmgw.errors import ConfigError
from llmgw.testing.trust import InMemoryTrust
from llmgw_agent.hub.dispatcher import HubDispatcher
from llmgw_agent.hub.listener import credentials_of, listen, unlink_socket
from llmgw_agent.wire.addresses import TcpAddress, UnixAddress
from llmgw_agent.wire.options import SERVER_OPTIONS


class Silent:
    """A ReportSink that nobody reports to."""

    def registered(self, registration: Registration) -> None: ...

    def heartbeat(self, node: NodeId, beat: Heartbeat) -> None: ...

    def shard_reported(self, node: NodeId, session: SessionId, report: ShardReport) -> None: ...

    def rejected(self, rejection: Rejection) -> None: ...

    def disconnected(self, node: NodeId, session: SessionId) -> None: ...


def _credentials() -> grpc.ServerCredentials:
    trust = InMemoryTrust()
    return credentials_of(trust, trust.server_identity())


def _mode(address: UnixAddress) -> int | None:
    path = Path(address.path)
    return path.stat().st_mode & 0o777 if path.exists() else None


async def test_port_0_is_chosen_and_told() -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    bound = listen(server, TcpAddress("127.0.0.1", 0), _credentials())
    assert isinstance(bound, TcpAddress)
    assert bound.port > 0
    await server.stop(None)


async def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = grpc.aio.server(options=SERVER_OPTIONS)
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: Address already in use"):
            listen(server, TcpAddress("127.0.0.1", port), _credentials())
        await server.stop(None)


async def test_a_dispatcher_that_cannot_bind_ends_with_one_plain_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        context = DispatcherContext(
            agent_listen=f"127.0.0.1:{other.getsockname()[1]}",
            state_dir=tmp_path,
            trust=InMemoryTrust(),
            clock=SystemClock(),
        )
        with pytest.raises(ConfigError, match="Address already in use"):
            await HubDispatcher(context).run(Silent(), task_status=anyio.TASK_STATUS_IGNORED)


async def test_an_address_of_another_machine_is_named() -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:8082: Cannot assign"):
        listen(server, TcpAddress("192.0.2.1", 8082), _credentials())
    await server.stop(None)


async def test_an_unknown_host_is_named() -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    with pytest.raises(ConfigError, match=r"host 'no\.such\.invalid' is not known"):
        listen(server, TcpAddress("no.such.invalid", 8082), _credentials())
    await server.stop(None)


async def test_a_socket_file_is_its_owners_alone_and_goes_with_its_listener(
    tmp_path: Path,
) -> None:
    address = UnixAddress(str(tmp_path / "agents.sock"))
    before = os.umask(0o022)
    try:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        listen(server, address, None)
        await server.start()
        assert _mode(address) == 0o600
        assert os.umask(0o022) == 0o022
        await server.stop(None)
        unlink_socket(address)
        assert _mode(address) is None
    finally:
        os.umask(before)


async def test_a_socket_file_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agents.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = grpc.aio.server(options=SERVER_OPTIONS)
    listen(server, UnixAddress(str(path)), None)
    await server.stop(None)


async def test_a_socket_file_of_a_live_server_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agents.sock"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen()
        server = grpc.aio.server(options=SERVER_OPTIONS)
        with pytest.raises(ConfigError, match="another server listens there"):
            listen(server, UnixAddress(str(path)), None)
        assert path.exists()
        await server.stop(None)


async def test_a_file_that_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious.txt"
    path.write_text("precious")
    server = grpc.aio.server(options=SERVER_OPTIONS)
    with pytest.raises(ConfigError, match="no socket"):
        listen(server, UnixAddress(str(path)), None)
    assert path.read_text() == "precious"
    await server.stop(None)


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    with pytest.raises(ConfigError, match=f"{tmp_path}/none does not exist"):
        listen(server, UnixAddress(f"{tmp_path}/none/agents.sock"), None)
    await server.stop(None)


@pytest.mark.parametrize("text", ["nonsense", "::1:8082", "unix:relative", "127.0.0.1:99999"])
def test_what_is_no_address_is_a_problem_of_the_setting(text: str, tmp_path: Path) -> None:
    context = DispatcherContext(
        agent_listen=text, state_dir=tmp_path, trust=InMemoryTrust(), clock=SystemClock()
    )
    with pytest.raises(ConfigError, match="agent_listen: must"):
        HubDispatcher(context)
