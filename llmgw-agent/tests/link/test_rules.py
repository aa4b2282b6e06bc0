"""Who may have a session, and which of two wins."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

import anyio
import grpc.aio
import pytest

from llmgw.domain.ids import Epoch, NodeId, SessionId
from llmgw.domain.reports import Heartbeat, Registration
from llmgw_agent.node.link import ServerState
from llmgw_agent.wire.addresses import UnixAddress
from llmgw_agent.wire.codec import DownDecoder, encode_up
from llmgw_agent.wire.dialling import socket_channel
from llmgw_agent.wire.frames import Goodbye, GoodbyeCode, Unsupported, Welcome
from llmgw_agent.wire.service import Stub, read_message

NODE = NodeId("gpu-01")


class Raw:
    """A session spoken frame by frame, as an agent of any kind might."""

    def __init__(self, server: Any) -> None:
        self._channel = socket_channel(UnixAddress(server.address.removeprefix("unix:")))
        self.call = Stub(self._channel).session(None)
        self._decoder = DownDecoder()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

    async def say(self, *frames: Any) -> None:
        for frame in frames:
            for message in encode_up(frame):
                await self.call.write(message)

    async def hear(self) -> Any:
        with anyio.fail_after(5):
            data = await read_message(self.call)
        return None if data is None else self._decoder.feed(data)


def _registration(workshop: Any, server: Any, session: str, uid: str = "uid") -> Registration:
    return Registration(
        session=SessionId(session),
        inventory=workshop.agent(server, uid=uid).inventory,
        epoch=Epoch(0),
        cluster_id=None,
    )


async def _until_refused(agent: Any) -> str:
    """Return how the link's status words the refusal."""
    with anyio.fail_after(5):
        while agent.link.status()[0].state is not ServerState.REFUSED:  # noqa: ASYNC110 # looked at
            await anyio.sleep(0.01)
    return str(agent.link.status()[0].reason)


async def _refused(workshop: Any, **changes: Any) -> str:
    """Return why an agent is refused, of which the control plane then hears nothing."""
    async with (
        workshop.server(version="0.3.1").running() as server,
        workshop.agent(server, **changes).running() as agent,
    ):
        reason = await _until_refused(agent)
        assert server.reports.registrations == []
        return reason


@pytest.mark.parametrize("version", ["0.3.0", "0.3.9", "0.2.0", "0.1.5", "0.3.2.dev1"])
async def test_an_agent_up_to_two_minors_older_works(workshop: Any, version: str) -> None:
    async with (
        workshop.server(version="0.3.1").running() as server,
        workshop.agent(server, version=version).running(),
    ):
        await server.reports.until(lambda: server.reports.registrations)


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0"])
async def test_a_newer_agent_is_refused_with_the_reason(workshop: Any, version: str) -> None:
    reason = await _refused(workshop, version=version)
    assert reason.startswith(f"agent {version} is newer than server 0.3.1: upgrade the server")


@pytest.mark.parametrize("version", ["0.0.9", "nonsense"])
async def test_an_agent_that_is_too_old_is_refused_with_the_reason(
    workshop: Any, version: str
) -> None:
    reason = await _refused(workshop, version=version)
    assert version in reason


async def test_a_node_of_another_cluster_is_refused(workshop: Any) -> None:
    reason = await _refused(workshop, version="0.3.0", cluster_id="elsewhere")
    assert "belongs to cluster elsewhere, this server to test-cluster" in reason
    assert "--rejoin" in reason


async def test_a_revoked_node_is_refused(workshop: Any) -> None:
    workshop.trust.revoke(NODE, "stolen")
    reason = await _refused(workshop, version="0.3.0")
    assert reason == "node gpu-01 is revoked: stolen"


async def test_a_node_revoked_in_mid_session_is_refused_at_its_next_heartbeat(
    workshop: Any,
) -> None:
    async with workshop.server().running() as server, workshop.agent(server).running() as agent:
        await server.reports.until(lambda: server.reports.beats)
        workshop.trust.revoke(NODE, "stolen")
        await server.reports.until(lambda: server.reports.gone)
        await _until_refused(agent)


async def test_another_agent_under_a_live_node_id_is_refused_and_the_first_stays(
    workshop: Any,
) -> None:
    async with workshop.server().running() as server, workshop.agent(server).running():
        await server.reports.until(lambda: server.reports.registrations)
        async with workshop.agent(server).running() as second:
            assert "--node-id" in await _until_refused(second)
        assert server.reports.gone == []
        assert len(server.reports.registrations) == 1


async def test_a_newer_session_of_the_same_agent_takes_over(workshop: Any) -> None:
    async with workshop.server(heartbeat_s=60).running() as server:
        async with Raw(server) as old, Raw(server) as new:
            await old.say(_registration(workshop, server, "life/1"))
            assert isinstance(await old.hear(), Welcome)
            await new.say(_registration(workshop, server, "life/2"))
            assert isinstance(await new.hear(), Welcome)
            goodbye = await old.hear()
            assert isinstance(goodbye, Goodbye)
            assert goodbye.code == GoodbyeCode.SUPERSEDED
            assert server.reports.gone == [(NODE, "life/1")]
        await server.reports.until(lambda: len(server.reports.gone) == 2)
        assert server.reports.gone[1] == (NODE, "life/2")


async def test_an_older_session_that_arrives_late_is_refused(workshop: Any) -> None:
    async with (
        workshop.server(heartbeat_s=60).running() as server,
        Raw(server) as new,
        Raw(server) as late,
    ):
        await new.say(_registration(workshop, server, "life/2"))
        assert isinstance(await new.hear(), Welcome)
        await late.say(_registration(workshop, server, "life/1"))
        goodbye = await late.hear()
        assert isinstance(goodbye, Goodbye)
        assert goodbye.code == GoodbyeCode.STALE_SESSION


async def test_a_new_life_of_an_agent_takes_over_whatever_its_counter(workshop: Any) -> None:
    async with (
        workshop.server(heartbeat_s=60).running() as server,
        Raw(server) as old,
        Raw(server) as new,
    ):
        await old.say(_registration(workshop, server, "first-life/7"))
        assert isinstance(await old.hear(), Welcome)
        await new.say(_registration(workshop, server, "second-life/1"))
        assert isinstance(await new.hear(), Welcome)


async def test_heartbeats_of_another_session_are_ignored(workshop: Any) -> None:
    async with workshop.server(heartbeat_s=60).running() as server, Raw(server) as agent:
        await agent.say(
            _registration(workshop, server, "life/2"),
            Heartbeat(session=SessionId("life/1"), sequence=9),
            Heartbeat(session=SessionId("life/2"), sequence=1),
        )
        await server.reports.until(lambda: server.reports.beats)
        assert [beat.sequence for _, beat in server.reports.beats] == [1]


async def test_a_report_for_another_node_ends_the_session(workshop: Any) -> None:
    async with workshop.server(heartbeat_s=60).running() as server, Raw(server) as agent:
        await agent.say(
            _registration(workshop, server, "life/1"), workshop.report(node="somebody-else")
        )
        await agent.hear()
        goodbye = await agent.hear()
        assert goodbye.code == GoodbyeCode.IDENTITY_MISMATCH
        assert server.reports.shards == []


async def test_a_registration_with_another_nodes_shards_is_refused(workshop: Any) -> None:
    async with workshop.server(heartbeat_s=60).running() as server:
        shards = (workshop.report(), workshop.report(node="somebody-else"))
        forged = replace(_registration(workshop, server, "life/1"), shards=shards)
        async with Raw(server) as agent:
            await agent.say(forged)
            assert (await agent.hear()).code == GoodbyeCode.IDENTITY_MISMATCH
        async with Raw(server) as agent:
            await agent.say(_registration(workshop, server, "life/1"), forged)
            assert isinstance(await agent.hear(), Welcome)
            assert (await agent.hear()).code == GoodbyeCode.IDENTITY_MISMATCH
        assert len(server.reports.registrations) == 1


async def test_a_session_that_was_taken_over_changes_nothing_any_more(workshop: Any) -> None:
    async with workshop.server(heartbeat_s=60).running() as server:
        async with Raw(server) as old, Raw(server) as new:
            first = _registration(workshop, server, "life/1")
            await old.say(first)
            assert isinstance(await old.hear(), Welcome)
            await new.say(_registration(workshop, server, "life/2"))
            assert isinstance(await new.hear(), Welcome)
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it is over already
                await old.say(first, workshop.report())
            await new.say(Heartbeat(session=SessionId("life/2"), sequence=1))
            await server.reports.until(lambda: server.reports.beats)
        assert [item.session for item in server.reports.registrations] == ["life/1", "life/2"]
        assert server.reports.shards == []


async def test_a_node_id_that_is_no_safe_name_is_refused(workshop: Any) -> None:
    async with workshop.server(heartbeat_s=60).running() as server, Raw(server) as agent:
        agent_half = workshop.agent(server, node="../etc")
        await agent.say(
            Registration(
                session=SessionId("l/1"),
                inventory=agent_half.inventory,
                epoch=Epoch(0),
                cluster_id=None,
            )
        )
        assert (await agent.hear()).code == GoodbyeCode.IDENTITY_MISMATCH


async def test_a_silent_agent_is_let_go_after_three_intervals(workshop: Any) -> None:
    async with workshop.server(heartbeat_s=0.1).running() as server, Raw(server) as agent:
        await agent.say(_registration(workshop, server, "life/1"))
        assert isinstance(await agent.hear(), Welcome)
        goodbye = await agent.hear()
        assert goodbye.code == GoodbyeCode.SILENT
        assert server.reports.gone == [(NODE, "life/1")]


async def test_a_first_frame_that_is_no_registration_ends_the_call(workshop: Any) -> None:
    async with workshop.server().running() as server, Raw(server) as agent:
        await agent.say(Heartbeat(session=SessionId("life/1"), sequence=1))
        assert (await agent.hear()).code == GoodbyeCode.MALFORMED
        assert await agent.hear() is None


async def test_bytes_that_are_no_frame_end_the_call_and_nothing_else(workshop: Any) -> None:
    async with workshop.server().running() as server, workshop.agent(server).running():
        await server.reports.until(lambda: server.reports.beats)
        for data in (b"\xff\xff\xff", b"", b"\x0a\x05abc"):
            async with Raw(server) as agent:
                await agent.call.write(data)
                answer = await agent.hear()
                assert isinstance(answer, Goodbye | Unsupported)
        seen = len(server.reports.beats)
        await server.reports.until(lambda: len(server.reports.beats) > seen)
        assert server.reports.gone == []


async def test_a_frame_of_a_newer_release_is_answered_and_the_session_goes_on(
    workshop: Any,
) -> None:
    async with workshop.server(heartbeat_s=60).running() as server, Raw(server) as agent:
        await agent.say(_registration(workshop, server, "life/1"))
        assert isinstance(await agent.hear(), Welcome)
        await agent.call.write(bytes([0x9A, 0x06, 0x00]))
        assert isinstance(await agent.hear(), Unsupported)
        await agent.say(Heartbeat(session=SessionId("life/1"), sequence=1))
        await server.reports.until(lambda: server.reports.beats)


async def test_a_message_over_the_limit_ends_its_own_call_only(workshop: Any) -> None:
    async with workshop.server().running() as server, workshop.agent(server).running():
        await server.reports.until(lambda: server.reports.beats)
        async with Raw(server) as agent:
            with pytest.raises(grpc.aio.AioRpcError, match="Internal error from Core"):
                await agent.call.write(bytes(5 << 20))
        assert server.reports.gone == []
