"""Ranks meet before one of them loads anything."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream

from llmgw.clock import SystemClock
from llmgw.domain.commands import Peer, ShardSpec
from llmgw.domain.ids import NodeId
from llmgw.domain.replicas import FailureCause, ShardState
from llmgw.testing import values
from llmgw_agent.node.host import StepFailed
from llmgw_agent.node.preflight import Presence, fingerprint, meet

pytestmark = pytest.mark.anyio


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def gang(count: int = 2) -> list[ShardSpec]:
    peers = tuple(
        Peer(
            rank=rank,
            node=NodeId(f"n{rank}"),
            address="127.0.0.1",
            ports=(free_port(), free_port()),
            devices=0,
        )
        for rank in range(count)
    )
    return [
        values.shard(f"r1.{rank}", rank=rank, peers=peers, ports=peers[rank].ports)
        for rank in range(count)
    ]


def presence(spec: ShardSpec, **changes: str) -> Presence:
    own = Presence(replica=spec.replica, rank=spec.rank, engine="vllm 0.32.0", weights="w")
    return replace(own, **changes)  # type: ignore[arg-type] # texts only


async def join(spec: ShardSpec, own: Presence) -> StepFailed | None:
    try:
        await meet(spec, own, clock=SystemClock(), report=lambda _done, _total: None)
    except StepFailed as failed:
        return failed
    return None


async def test_ranks_that_come_at_different_times_all_go_on() -> None:
    done: list[int] = []

    async def rank(spec: ShardSpec, after_s: float) -> None:
        await anyio.sleep(after_s)
        assert await join(spec, presence(spec)) is None
        done.append(spec.rank)

    with anyio.fail_after(15):
        async with anyio.create_task_group() as group:
            for place, spec in enumerate(gang(3)):
                group.start_soon(rank, spec, place * 0.4)
    assert sorted(done) == [0, 1, 2]


async def test_strangers_at_a_port_disturb_nothing() -> None:
    first, second = gang()
    ended: list[StepFailed | None] = []

    async def run(spec: ShardSpec) -> None:
        ended.append(await join(spec, presence(spec)))

    async with anyio.create_task_group() as group:
        group.start_soon(run, first)
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"replica": "other"}\n', b"{}\n"):
            stream = await _connected(first.ports[0])
            async with stream:
                await stream.send(said)
        group.start_soon(run, second)
    assert ended == [None, None]


async def _connected(port: int) -> SocketStream:
    with anyio.fail_after(5):
        while True:
            try:
                return await anyio.connect_tcp("127.0.0.1", port)
            except OSError:
                await anyio.sleep(0.02)


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        ({"engine": "vllm 0.31.0"}, FailureCause.ENGINE_MISSING),
        ({"weights": "v"}, FailureCause.WEIGHTS_CORRUPT),
    ],
    ids=["another version", "other weights"],
)
async def test_a_rank_that_differs_is_named_before_anything_loads(
    other: dict[str, str], cause: FailureCause
) -> None:
    one, two = gang()
    async with anyio.create_task_group() as group:
        group.start_soon(join, two, presence(two, **other))
        with anyio.fail_after(10):
            failed = await join(one, presence(one))
        group.cancel_scope.cancel()
    assert failed is not None
    assert failed.failure.cause is cause
    assert "n1" in failed.failure.message


async def test_a_rank_that_never_comes_is_named_at_the_limit() -> None:
    one, _ = gang()
    failed = await join(replace(one, start_limit_s=0.5), presence(one))
    assert failed is not None
    assert failed.failure.cause is FailureCause.START_TIMEOUT
    assert "rank 1 was not met" in failed.failure.message


async def test_an_address_that_is_not_this_machines_is_named() -> None:
    one, _ = gang()
    elsewhere = replace(one.peers[0], address="192.0.2.1")
    failed = await join(replace(one, peers=(elsewhere, one.peers[1])), presence(one))
    assert failed is not None
    assert "192.0.2.1" in failed.failure.message


def test_other_weights_have_another_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "m.safetensors").write_bytes(b"one")
    before = fingerprint(tmp_path / "a")
    assert fingerprint(tmp_path / "a") == before
    (tmp_path / "a" / "m.safetensors").write_bytes(b"two")
    assert fingerprint(tmp_path / "a") != before


async def test_no_rank_is_launched_before_all_have_met_and_a_dead_one_is_not_restarted_here(
    node: Any, spec: Any
) -> None:
    ranks = [
        replace(spec(item.id), rank=item.rank, ports=item.ports, peers=item.peers)
        for item in gang()
    ]
    async with node.running():
        await node.start(ranks[0])
        await node.wait_state("r1.0", ShardState.FETCHING)
        await anyio.sleep(0.5)
        assert node.engine_processes() == set()
        await node.start(ranks[1])
        await node.wait_state("r1.0", ShardState.READY)
        report = await node.wait_state("r1.1", ShardState.READY)
        os.kill(report.shard.pid, signal.SIGKILL)
        await node.wait_state("r1.1", ShardState.FAILED)
