"""The real authority of the store behind the hub: joining, and its change in three steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from llmgw.clock import SystemClock
from llmgw.domain.ids import NodeId
from llmgw.store import Store, open_store
from llmgw_agent.node.link import ServerState
from llmgw_agent.wire.addresses import TcpAddress, parse_address
from llmgw_agent.wire.authorities import authorities_digest

NODE = NodeId("gpu-01")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    folder = tmp_path / "server"
    folder.mkdir()
    opened = open_store(None, state_dir=folder, cluster_secret=None, clock=SystemClock())
    opened.trust.write_local_token(folder / "join.token")
    yield opened
    opened.close()


async def _do(work: Callable[[], Any]) -> Any:
    return await anyio.to_thread.run_sync(work)


async def test_an_authority_is_replaced_in_three_steps_under_a_live_session(
    workshop: Any, store: Store, tmp_path: Path
) -> None:
    workshop.trust = store.trust
    token = (tmp_path / "server" / "join.token").read_text()
    async with workshop.server("127.0.0.1:0").running() as server:
        agent = workshop.agent(server, token=token)
        address = parse_address(server.address)
        assert isinstance(address, TcpAddress)
        async with agent.running(), anyio.create_task_group() as tasks:
            tasks.start_soon(agent.credentials.run, (address,))
            await server.reports.until(lambda: server.reports.beats)
            pins = agent.kept.pins
            for step in (
                store.trust.begin_rotation,
                store.trust.switch_authority,
                store.trust.finish_rotation,
            ):
                await _do(step)
                wanted = authorities_digest((await _do(store.trust.server_identity)).client_roots)
                await server.reports.until(lambda: agent.kept.authorities == wanted)  # noqa: B023
            assert not agent.kept.pins & pins
            assert server.reports.gone == []
            tasks.cancel_scope.cancel()
        again = workshop.agent(server, folder=agent.folder, uid=agent.inventory.agent_uid)
        async with again.running():
            await server.reports.until(lambda: len(server.reports.registrations) == 2)


async def test_a_token_is_good_once_and_a_revoked_node_is_put_out(
    workshop: Any, store: Store
) -> None:
    workshop.trust = store.trust
    _, token = await _do(lambda: store.trust.create_token(who="test"))
    async with workshop.server("127.0.0.1:0").running() as server:
        agent = workshop.agent(server, token=token.reveal())
        async with agent.running():
            await server.reports.until(lambda: server.reports.beats)
            async with workshop.agent(server, node="gpu-02", token=token.reveal()).running() as two:
                await _until(two, ServerState.WAITING)
                assert "token is spent" in two.link.status()[0].reason
            await _do(lambda: store.trust.revoke(NODE, "stolen"))
            await _until(agent, ServerState.REFUSED)
            assert agent.link.status()[0].reason == "node gpu-01 is revoked: stolen"


async def _until(agent: Any, state: ServerState) -> None:
    with anyio.fail_after(10):
        while agent.link.status()[0].state is not state:  # noqa: ASYNC110 # looked at
            await anyio.sleep(0.01)
