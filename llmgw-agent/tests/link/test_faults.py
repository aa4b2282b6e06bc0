"""Servers that die and come back, agents that go silent, connections that end."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest

from llmgw.clock import SystemClock
from llmgw.domain.commands import StartShard
from llmgw.domain.ids import Epoch, NodeId, SessionId
from llmgw.errors import NodeUnreachable
from llmgw_agent.hub.admissions import PeerAdmissions
from llmgw_agent.hub.authorities import AuthorityWatch
from llmgw_agent.hub.call import House, SessionCall
from llmgw_agent.hub.identity import SameUser
from llmgw_agent.hub.sessions import Sessions
from llmgw_agent.node.link import ServerState
from llmgw_agent.wire.codec import encode_down, encode_up
from llmgw_agent.wire.frames import Welcome
from llmgw_agent.wire.service import SERVICE

NODE = NodeId("gpu-01")


async def test_an_agent_waits_for_a_server_that_is_not_there_yet(workshop: Any) -> None:
    agent = workshop.agent(workshop.server().listen)
    async with agent.running():
        await _until(agent, ServerState.WAITING)
        assert "unavailable" in agent.link.status()[0].reason
        async with workshop.server().running() as server:
            await server.reports.until(lambda: server.reports.registrations)
            await _until(agent, ServerState.CONNECTED)


async def test_a_server_that_comes_back_gets_the_whole_report_again(workshop: Any) -> None:
    agent = workshop.agent(workshop.server().listen)
    agent.outbox.publish(workshop.report())
    async with agent.running():
        sessions = []
        for _ in range(3):
            async with workshop.server().running() as server:
                await server.reports.until(lambda: server.reports.registrations)
                assert server.reports.registrations[0].shards == (workshop.report(),)
                sessions.append(server.reports.registrations[0].session)
        assert len(set(sessions)) == 3
        assert [int(session.rpartition("/")[2]) for session in sessions] == sorted(
            int(session.rpartition("/")[2]) for session in sessions
        )


async def test_a_server_that_stops_says_so(workshop: Any) -> None:
    async with workshop.server().running() as server:
        agent = workshop.agent(server)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.link.run)
            await server.reports.until(lambda: server.reports.beats)
            server.stop()
            await _until(agent, ServerState.WAITING)
            assert agent.link.status()[0].reason == "the server stops"
            tasks.cancel_scope.cancel()


async def test_commands_for_a_session_that_ended_are_not_taken(workshop: Any) -> None:
    async with workshop.server().running() as server:
        async with workshop.agent(server).running():
            await server.reports.until(lambda: server.reports.registrations)
        await server.reports.until(lambda: server.reports.gone)
        with pytest.raises(NodeUnreachable):
            await server.dispatcher.dispatch(
                NODE, [StartShard(epoch=Epoch(1), spec=workshop.spec())]
            )


async def test_an_agent_gives_up_a_server_that_does_not_reply_to_heartbeats(
    workshop: Any, tmp_path: Any
) -> None:
    """A stopped loop whose sockets still answer: pings do not show it, heartbeats do."""
    async with deaf_server(f"unix:{tmp_path}/deaf.sock", interval_s=0.1):
        agent = workshop.agent(f"unix:{tmp_path}/deaf.sock")
        async with agent.running():
            await _until(agent, ServerState.WAITING)
            assert agent.link.status()[0].reason == "no reply to 3 heartbeats"


async def test_a_call_that_ends_under_a_write_ends_the_session_and_nothing_else(
    workshop: Any,
) -> None:
    """gRPC would log what is raised here as an unexpected error of the server."""
    server = workshop.server()
    reports, trust, clock = server.reports, workshop.trust, SystemClock()
    house = House(
        trust=trust,
        clock=clock,
        reports=reports,
        server_version="0.1.0",
        heartbeat_s=1.0,
        node_count_hint=1,
        authorities=AuthorityWatch(trust, clock),
        admissions=PeerAdmissions(trust, Sessions(), clock, every_s=1.0),
    )
    agent = workshop.agent(server.listen, version="0.1.0")
    registration = agent.outbox.registration(SessionId("life/1"))
    call: Any = CutShort(encode_up(registration)[0])
    with anyio.fail_after(10):
        await SessionCall(call, SameUser(), house).run()
    assert reports.gone == [(NODE, "life/1")]


class CutShort:
    """The server's end of a call that is over as soon as something is written."""

    def __init__(self, first: bytes) -> None:
        self._incoming = [first]
        self._over = anyio.Event()

    def peer(self) -> str:
        return "unix:"

    async def read(self) -> object:
        if self._incoming:
            return self._incoming.pop()
        await self._over.wait()
        return object()  # anything but a message is the end

    async def write(self, _: bytes) -> None:
        self._over.set()
        cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")  # the stubs have none
        raise cygrpc.ExecuteBatchError("Failed grpc_call_start_batch")


@asynccontextmanager
async def deaf_server(address: str, *, interval_s: float) -> AsyncIterator[None]:
    """A server that welcomes, and then answers nothing."""

    async def session(_: object, context: Any) -> None:
        await context.read()
        welcome = Welcome(
            heartbeat_interval_s=interval_s,
            cluster_id="c",
            server_version="0.1.0",
            capabilities=frozenset(),
        )
        await context.write(encode_down(welcome)[0])
        await anyio.sleep_forever()

    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                SERVICE, {"Session": grpc.stream_stream_rpc_method_handler(session)}
            ),
        )
    )
    server.add_insecure_port(address)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def _until(agent: Any, state: ServerState) -> None:
    with anyio.fail_after(10):
        while agent.link.status()[0].state is not state:  # noqa: ASYNC110 # looked at
            await anyio.sleep(0.01)
