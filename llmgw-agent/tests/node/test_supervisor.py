"""One shard's whole life on a real node: real shim, real processes, no server."""

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmgw.domain.ids import Epoch
from llmgw.domain.loads import MemoryReport
from llmgw.domain.replicas import FailureCause, ShardState
from llmgw_agent.node import processes
from llmgw_agent.node.assignments import Assigned
from llmgw_agent.node.hands import NodeHands
from llmgw_agent.node.shardfolder import ShardFolder
from llmgw_agent.node.shards import Life, Phase

# ruff: noqa: ASYNC110 -- the process table wakes nobody

pytestmark = pytest.mark.anyio


def kill(pid: int | None, number: int = signal.SIGKILL) -> None:
    assert pid is not None
    os.kill(pid, number)


async def test_an_engine_is_started_and_ready_only_after_it_answered_a_request(
    node: Any, spec: Any
) -> None:
    async with node.running():
        assert await node.start(spec(say=["hello"])) is None
        report = await node.wait_state("r1.0", ShardState.READY)
        assert report.url == f"http://127.0.0.1:{report.shard.ports[0]}"
        assert report.credential is not None
        assert (report.shard.incarnation, report.shard.restarts) == (1, 0)
        assert report.shard.started_at is not None
        assert "hello" in [line async for line in node.logs.read("r1.0", lines=9, follow=False)]


async def test_a_stopped_shard_leaves_no_process_no_folder_and_no_assignment(
    node: Any, spec: Any
) -> None:
    async with node.running():
        await node.start(spec(children=2, ignore_term=True))
        await node.wait_state("r1.0", ShardState.READY)
        assert len(node.engine_processes("r1.0")) == 3
        with node.outbox.subscribe() as link:
            await node.stop("r1.0", grace_s=0.2)
            state = None
            while state is not ShardState.STOPPED:
                (report,) = await link.next_reports()
                state = report.shard.state
        assert node.engine_processes() == set()
        assert not (node.state / "shards" / "r1.0").exists()
        assert node.assignments.all() == {}


async def test_engines_outlive_their_agent_and_are_adopted_with_the_same_pid(
    node: Any, spec: Any
) -> None:
    async with node.running():
        await node.start(spec())
        before = await node.wait_state("r1.0", ShardState.READY)
    assert processes.find(before.shard.pid) is not None
    async with node.running():
        after = await node.wait_state("r1.0", ShardState.READY)
    assert (after.shard.pid, after.shard.started_at) == (before.shard.pid, before.shard.started_at)
    assert (after.shard.incarnation, after.shard.restarts) == (1, 0)
    assert after.credential == before.credential


async def test_a_killed_engine_serves_again_within_fifteen_seconds_and_its_helpers_are_gone(
    node: Any, spec: Any
) -> None:
    async with node.running():
        await node.start(spec(children=2))
        before = await node.wait_state("r1.0", ShardState.READY)
        left = node.engine_processes("r1.0")
        with anyio.fail_after(2):
            kill(before.shard.pid)
            while (report := node.report("r1.0")).shard.state is ShardState.READY:
                await anyio.sleep(0.02)
        await node.wait_state("r1.0", ShardState.BACKOFF)
        assert node.report("r1.0").shard.retry_in_s > 4
        assert not left & node.engine_processes("r1.0")
        report = await node.wait_state("r1.0", ShardState.READY)
    assert (report.shard.incarnation, report.shard.restarts) == (2, 1)
    assert report.shard.failure.cause is FailureCause.KILLED
    assert report.shard.failure.exit_code == -9
    assert report.shard.failure.command


async def test_a_killed_shim_takes_its_engine_along_and_the_shard_comes_back(
    node: Any, spec: Any
) -> None:
    async with node.running():
        await node.start(spec(children=1, ignore_term=True))
        await node.wait_state("r1.0", ShardState.READY)
        left = node.engine_processes("r1.0")
        shim = node.supervisor._runners["r1.0"]._hands.incarnation.state.shim
        with anyio.fail_after(5):
            kill(shim.pid)
            while left & node.engine_processes("r1.0"):
                await anyio.sleep(0.05)
        report = await node.wait_state("r1.0", ShardState.READY)
    assert report.shard.failure.cause is FailureCause.SHIM_LOST


async def test_an_exit_with_code_zero_that_nobody_asked_for_is_a_failure(
    node: Any, spec: Any
) -> None:
    async with node.running():
        await node.start(spec(exit_after=0.2, exit_code=0))
        report = await node.wait_state("r1.0", ShardState.BACKOFF)
    assert report.shard.failure.exit_code == 0


async def test_a_stop_ordered_while_the_agent_was_dead_is_carried_out_by_the_next(
    node: Any, spec: Any
) -> None:
    async with node.running():
        await node.start(spec())
        await node.wait_state("r1.0", ShardState.READY)
    node.begin()
    await node.stop("r1.0")
    async with node.running():
        with anyio.fail_after(10):
            while not node.supervisor.is_idle():
                await anyio.sleep(0.02)
    assert node.engine_processes() == set()


async def test_an_engine_that_died_while_the_agent_was_dead_is_started_again(
    node: Any, spec: Any
) -> None:
    async with node.running():
        await node.start(spec(children=1))
        before = await node.wait_state("r1.0", ShardState.READY)
    kill(before.shard.pid)
    async with node.running():
        report = await node.wait_state("r1.0", ShardState.READY)
    assert (report.shard.incarnation, report.shard.restarts) == (2, 1)
    assert len(node.engine_processes("r1.0")) == 2


async def test_an_engine_gets_nothing_of_the_agents_environment_but_what_is_allowed(
    node: Any, spec: Any
) -> None:
    async with node.running():
        await node.start(spec())
        report = await node.wait_state("r1.0", ShardState.READY)
    environment = await anyio.Path(f"/proc/{report.shard.pid}/environ").read_bytes()
    names = {item.partition(b"=")[0] for item in environment.split(b"\0")}
    assert b"CANARY_TOKEN" not in names
    assert b"LLMGW_REPLICA" in names


async def test_what_an_engine_says_of_its_memory_is_reported_also_of_an_adopted_one(
    node: Any, spec: Any
) -> None:
    for _ in ("started", "adopted"):
        async with node.running():
            await node.start(spec(say=("took 512 MiB",)))
            await node.wait_state("r1.0", ShardState.READY)
            with anyio.fail_after(15):
                while (memory := node.report("r1.0").memory) is None:
                    await anyio.sleep(0.05)
            assert memory.main_memory_mib == 512.0


async def test_what_a_shim_writes_down_only_after_its_engine_is_ready_is_read_all_the_same(
    node: Any, spec: Any, tmp_path: Path
) -> None:
    folder = ShardFolder(tmp_path / "shards" / "r1.0")
    hands = NodeHands(host=node.host, folder=folder, assigned=Assigned(spec=spec(), epoch=Epoch(1)))
    hands.incarnation.log.begin(1)
    life = Life(spec=spec(), phase=Phase.SERVING, incarnation=1)
    await hands.mark_ready(life)
    assert hands.incarnation.memory is None
    folder.logs.mkdir()
    (folder.logs / "00000001.log").write_text("took 512 MiB\n")
    await hands.look(life)
    assert hands.incarnation.memory == MemoryReport(main_memory_mib=512.0)
