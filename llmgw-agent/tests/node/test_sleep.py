"""An engine's own sleep on a real node: told, proven, lent to others, and back."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmgw.contracts.engine import EngineTraits
from llmgw.domain.commands import SleepShard, WakeShard
from llmgw.domain.ids import DeviceId, Epoch, ReplicaId, ShardId
from llmgw.domain.nodes import Device
from llmgw.domain.replicas import FailureCause, ShardState
from llmgw.domain.reports import Rejection
from llmgw.testing.clock import FastClock
from llmgw.testing.fake_adapter import FakeEngineAdapter
from llmgw_agent.node.shardfolder import ShardFolder

# ruff: noqa: ASYNC110 -- the last report of a shard wakes nobody

pytestmark = pytest.mark.anyio

GPU = Device(id=DeviceId("GPU-1"), index=0, kind="fake", vendor="fake", memory_mib=80000)


async def sleep(node: Any, shard: str = "r1.0", *, level: int = 1) -> Rejection | None:
    command = SleepShard(epoch=Epoch(1), shard=ShardId(shard), replica=ReplicaId("r1"), level=level)
    found: Rejection | None = await node.commands.apply(command)
    return found


async def wake(node: Any, shard: str = "r1.0") -> Rejection | None:
    command = WakeShard(epoch=Epoch(1), shard=ShardId(shard), replica=ReplicaId("r1"))
    found: Rejection | None = await node.commands.apply(command)
    return found


async def test_an_engine_sleeps_and_wakes_as_the_same_process(node: Any, spec: Any) -> None:
    async with node.running():
        await node.start(spec(can_sleep=True))
        before = await node.wait_state("r1.0", ShardState.READY)
        assert await sleep(node) is None
        asleep = await node.wait_state("r1.0", ShardState.SLEEPING)
        assert asleep.shard.pid == before.shard.pid
        assert await wake(node) is None
        after = await node.wait_state("r1.0", ShardState.READY)
    assert (after.shard.pid, after.shard.incarnation) == (before.shard.pid, 1)
    assert (after.shard.restarts, after.shard.failure) == (0, None)


async def test_a_sleeping_engine_is_adopted_asleep_and_wakes_when_told(
    node: Any, spec: Any
) -> None:
    async with node.running():
        await node.start(spec(can_sleep=True))
        before = await node.wait_state("r1.0", ShardState.READY)
        await sleep(node)
        await node.wait_state("r1.0", ShardState.SLEEPING)
    async with node.running():
        await node.wait_state("r1.0", ShardState.SLEEPING)
    node.begin()
    await wake(node)  # persisted by an agent that died before it could tell the engine
    async with node.running():
        after = await node.wait_state("r1.0", ShardState.READY)
    assert after.shard.pid == before.shard.pid


async def test_an_engine_that_only_says_that_it_sleeps_is_ended_instead(
    node: Any, spec: Any
) -> None:
    async with node.running():
        await node.start(spec(can_sleep=True, sleep_lies=True))
        await node.wait_state("r1.0", ShardState.READY)
        await sleep(node)
        report = await node.wait_state("r1.0", ShardState.FAILED)
        assert node.engine_processes() == set()
    assert report.shard.failure.cause is FailureCause.SLEEP_FAILED


async def test_an_engine_whose_memory_does_not_come_back_is_ended_instead(
    node: Any, spec: Any
) -> None:
    node.host = replace(node.host, clock=FastClock(times=20))
    node.devices = (replace(GPU, memory_used_mib=70000),)
    async with node.running():
        await node.start(replace(spec(can_sleep=True), devices=(GPU.id,)))
        await node.wait_state("r1.0", ShardState.READY)
        await sleep(node)
        report = await node.wait_state("r1.0", ShardState.FAILED)
    assert report.shard.failure.cause is FailureCause.SLEEP_FAILED
    assert "70000 of 70000 MiB on GPU-1" in report.shard.failure.message


async def test_an_engine_that_cannot_wake_is_started_anew_at_once(node: Any, spec: Any) -> None:
    async with node.running():
        await node.start(spec(can_sleep=True, wake_fails=True))
        before = await node.wait_state("r1.0", ShardState.READY)
        await sleep(node)
        await node.wait_state("r1.0", ShardState.SLEEPING)
        await wake(node)
        with anyio.fail_after(4):  # less than the first pause after a failure
            after = await node.wait_state("r1.0", ShardState.READY)
    assert after.shard.pid != before.shard.pid
    assert after.shard.incarnation == 2


async def test_an_engine_that_dies_in_its_sleep_is_not_started_again(node: Any, spec: Any) -> None:
    async with node.running():
        await node.start(spec(can_sleep=True))
        await node.wait_state("r1.0", ShardState.READY)
        await sleep(node)
        report = await node.wait_state("r1.0", ShardState.SLEEPING)
        os.kill(report.shard.pid, 9)
        await node.wait_state("r1.0", ShardState.FAILED)


async def test_a_sleeping_engine_is_stopped_as_any_other(node: Any, spec: Any) -> None:
    async with node.running():
        await node.start(spec(can_sleep=True))
        await node.wait_state("r1.0", ShardState.READY)
        await sleep(node)
        await node.wait_state("r1.0", ShardState.SLEEPING)
        await node.stop("r1.0")
        with anyio.fail_after(10):
            while node.report("r1.0") is not None:
                await anyio.sleep(0.02)
    assert node.engine_processes() == set()


async def test_the_devices_of_a_sleeper_are_another_engines_until_that_one_sleeps_too(
    node: Any, spec: Any
) -> None:
    node.devices = (replace(GPU, memory_used_mib=100),)
    async with node.running():
        await node.start(replace(spec("r1.0", can_sleep=True), devices=(GPU.id,)))
        await node.wait_state("r1.0", ShardState.READY)
        other = replace(spec("r2.0", can_sleep=True), devices=(GPU.id,))
        refusal = await node.start(other)
        assert refusal is not None
        assert refusal.code == "device_busy"
        await sleep(node)
        await node.wait_state("r1.0", ShardState.SLEEPING)
        assert await node.start(other) is None
        await node.wait_state("r2.0", ShardState.READY)
        busy = await wake(node, "r1.0")
        assert busy is not None
        assert busy.code == "device_busy"
        await sleep(node, "r2.0")
        await node.wait_state("r2.0", ShardState.SLEEPING)
        assert await wake(node, "r1.0") is None
        await node.wait_state("r1.0", ShardState.READY)
        folders = {name: ShardFolder(node.state / "shards" / name) for name in ("r1.0", "r2.0")}
        states = {name: folder.state() for name, folder in folders.items()}
        assert {name: state.lent for name, state in states.items() if state} == {
            "r1.0": False,
            "r2.0": True,
        }


async def test_an_engine_without_sleep_is_not_told_to_sleep(node: Any, spec: Any) -> None:
    async with node.running():
        await node.start(spec())
        await node.wait_state("r1.0", ShardState.READY)
        refusal = await sleep(node)
        assert refusal is not None
        assert refusal.code == "sleep_unsupported"
        assert node.report("r1.0").shard.state is ShardState.READY


class OpenSleeper(FakeEngineAdapter):
    traits = EngineTraits(runs_on_cpu=True, sleep_is_open=True)


async def test_sleep_endpoints_without_a_key_are_used_on_guarded_nodes_only(
    node: Any, spec: Any
) -> None:
    node.host = replace(node.host, adapters={"fake": OpenSleeper()})
    node.guarded = False
    node.begin()
    await node.start(spec(can_sleep=True))
    refusal = await sleep(node)
    assert refusal is not None
    assert refusal.code == "sleep_unsafe"
    node.guarded = True
    node.begin()
    assert await sleep(node) is None


def test_a_mark_of_another_incarnation_says_nothing(tmp_path: Path) -> None:
    folder = ShardFolder(tmp_path)
    (tmp_path / "asleep.json").write_text('{"run": 1, "level": 1, "verified": true}')
    assert folder.sleep(2) is None
    assert folder.sleep(1) is not None
