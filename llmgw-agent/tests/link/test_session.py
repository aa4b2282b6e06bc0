"""Registration, reports and commands between the two real halves."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.domain.commands import DrainShard, StartShard, StopShard
from llmgw.domain.ids import Epoch, NodeId, ReplicaId, ShardId
from llmgw.domain.nodes import InstalledEngine
from llmgw.domain.replicas import ShardState
from llmgw.domain.reports import Rejection
from llmgw.errors import NodeUnreachable

NODE = NodeId("gpu-01")


async def test_a_session_begins_with_the_whole_registration(workshop: Any) -> None:
    async with workshop.server().running() as server:
        agent = workshop.agent(server)
        agent.outbox.publish(workshop.report())
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            registration = server.reports.registrations[0]
            assert registration.inventory == agent.inventory
            assert registration.shards == (workshop.report(),)
            await server.reports.until(lambda: server.reports.beats)
            assert agent.cluster.cluster_id == workshop.trust.cluster_id


async def test_a_changed_shard_is_reported_with_its_newest_state(workshop: Any) -> None:
    async with workshop.server().running() as server, workshop.agent(server).running() as agent:
        await server.reports.until(lambda: server.reports.registrations)
        for state in (ShardState.STARTING, ShardState.READY):
            agent.outbox.publish(workshop.report(state=state))
        await server.reports.until(
            lambda: (
                server.reports.shards
                and server.reports.shards[-1][2].shard.state is ShardState.READY
            )
        )
        assert {node for node, _, _ in server.reports.shards} == {NODE}


async def test_commands_arrive_in_order(workshop: Any) -> None:
    spec = workshop.spec()
    commands = [
        StartShard(epoch=Epoch(1), spec=spec),
        DrainShard(epoch=Epoch(1), shard=spec.id, replica=spec.replica),
        StopShard(epoch=Epoch(2), shard=spec.id, replica=spec.replica, grace_s=3.0),
    ]
    async with workshop.server().running() as server, workshop.agent(server).running() as agent:
        await server.reports.until(lambda: server.reports.registrations)
        await server.dispatcher.dispatch(NODE, commands)
        await agent.commands.until(lambda: len(agent.commands.applied) == 3)
        assert agent.commands.applied == commands


async def test_a_refused_command_comes_back_with_its_code(workshop: Any) -> None:
    refusal = Rejection(
        node=NODE, shard=ShardId("m-1-1.0"), code="stale_epoch", message="epoch 1 is over"
    )
    async with workshop.server().running() as server:
        agent = workshop.agent(server)
        agent.commands.refusals[refusal.shard] = refusal
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            await server.dispatcher.dispatch(
                NODE, [StartShard(epoch=Epoch(1), spec=workshop.spec())]
            )
            await server.reports.until(lambda: server.reports.rejections)
            assert server.reports.rejections == [refusal]


async def test_heartbeats_follow_each_other_and_are_numbered(workshop: Any) -> None:
    async with workshop.server().running() as server, workshop.agent(server).running():
        await server.reports.until(lambda: len(server.reports.beats) >= 3)
        numbers = [beat.sequence for _, beat in server.reports.beats]
        assert numbers[:3] == [1, 2, 3]


async def test_a_new_engine_on_the_node_is_registered_without_a_new_session(workshop: Any) -> None:
    async with workshop.server().running() as server, workshop.agent(server).running() as agent:
        await server.reports.until(lambda: server.reports.registrations)
        installed = (InstalledEngine(engine="vllm", version="0.33.0", path="/opt"),)
        agent.update(engines=installed)
        await server.reports.until(lambda: len(server.reports.registrations) == 2)
        first, second = server.reports.registrations
        assert second.inventory.engines == installed
        assert first.session == second.session


async def test_two_agents_are_told_apart(workshop: Any) -> None:
    async with (
        workshop.server().running() as server,
        workshop.agent(server, node="a").running() as a,
        workshop.agent(server, node="b").running() as b,
    ):
        await server.reports.until(lambda: len(server.reports.registrations) == 2)
        stop = StopShard(epoch=Epoch(1), shard=ShardId("x.0"), replica=ReplicaId("x"))
        await server.dispatcher.dispatch(NodeId("b"), [stop])
        await b.commands.until(lambda: b.commands.applied)
        assert a.commands.applied == []


async def test_a_node_without_a_session_cannot_be_reached(workshop: Any) -> None:
    async with workshop.server().running() as server:
        with pytest.raises(NodeUnreachable, match="gpu-01: no agent is connected"):
            await server.dispatcher.dispatch(NODE, [])


async def test_a_stopped_agent_is_disconnected_and_cannot_be_reached(workshop: Any) -> None:
    async with workshop.server().running() as server:
        async with workshop.agent(server).running():
            await server.reports.until(lambda: server.reports.registrations)
        await server.reports.until(lambda: server.reports.gone)
        assert server.reports.gone == [(NODE, server.reports.registrations[0].session)]
        with pytest.raises(NodeUnreachable):
            await server.dispatcher.dispatch(NODE, [])


async def test_a_large_command_and_a_large_report_pass(workshop: Any) -> None:
    spec = workshop.spec(options={"template": "x" * (3 << 20)})
    async with workshop.server().running() as server, workshop.agent(server).running() as agent:
        await server.reports.until(lambda: server.reports.registrations)
        await server.dispatcher.dispatch(NODE, [StartShard(epoch=Epoch(1), spec=spec)])
        await agent.commands.until(lambda: agent.commands.applied)
        assert agent.commands.applied[0].spec == spec


async def test_an_agent_serves_every_server_at_once(workshop: Any, tmp_path: Any) -> None:
    one = workshop.server(f"unix:{tmp_path}/one.sock")
    two = workshop.server(f"unix:{tmp_path}/two.sock")
    async with one.running(), two.running(), workshop.agent(one, two).running() as agent:
        for server in (one, two):
            await server.reports.until(lambda server=server: server.reports.registrations)
        agent.outbox.publish(workshop.report())
        for server in (one, two):
            await server.reports.until(lambda server=server: server.reports.shards)


async def test_a_node_says_its_own_news_before_those_of_its_shards(workshop: Any) -> None:
    """A server that hears of stopping engines must know by then that their agent is leaving."""
    async with workshop.server(heartbeat_s=60.0).running() as server:
        agent = workshop.agent(server)
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            agent.update(leaving=True)
            agent.outbox.publish(workshop.report(state=ShardState.STOPPING))
            await server.reports.until(lambda: server.reports.shards)
            assert server.reports.registrations[-1].inventory.leaving
