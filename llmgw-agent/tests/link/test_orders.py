"""Orders and slow disks: what waits, and what does not."""

from __future__ import annotations

from typing import Any

import anyio

from llmgw.domain.commands import Command, StartShard, StopShard
from llmgw.domain.ids import Epoch, NodeId, ReplicaId, ShardId
from llmgw.domain.reports import Rejection
from llmgw_agent.node.link.orders import Orders

NODE = NodeId("gpu-01")


class SlowDisk:
    """Takes an order when the test says so."""

    def __init__(self) -> None:
        self.gate = anyio.Semaphore(0)
        self.begun: list[Command] = []
        self.taken: list[Command] = []

    async def apply(self, command: Command) -> Rejection | None:
        self.begun.append(command)
        await self.gate.acquire()
        self.taken.append(command)
        return None


def stop(shard: str) -> StopShard:
    return StopShard(epoch=Epoch(1), shard=ShardId(shard), replica=ReplicaId("r1"), grace_s=None)


async def test_a_disk_that_stands_still_delays_no_heartbeat(workshop: Any) -> None:
    disk = SlowDisk()
    async with workshop.server().running() as server:
        agent = workshop.agent(server)
        agent.link._orders._commands = disk
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            start = StartShard(epoch=Epoch(1), spec=workshop.spec())
            await server.dispatcher.dispatch(NODE, [start, stop("m-1-1.0"), stop("m-1-2.0")])
            seen = len(server.reports.beats)
            await server.reports.until(lambda: len(server.reports.beats) >= seen + 5)
            assert disk.begun == [start]
            assert server.reports.gone == []
            for _ in range(3):
                disk.gate.release()
            with anyio.fail_after(5):
                while len(disk.taken) < 3:  # noqa: ASYNC110 # looked at
                    await anyio.sleep(0.01)
            assert disk.taken == [start, stop("m-1-1.0"), stop("m-1-2.0")]


async def test_an_order_that_is_repeated_while_it_waits_is_carried_out_once() -> None:
    disk = SlowDisk()
    orders = Orders(disk)

    def refuse(rejection: Rejection) -> None:
        raise AssertionError(rejection)

    async with anyio.create_task_group() as group:
        await group.start(lambda *, task_status: orders.run(task_status=task_status))
        for _ in range(3):
            orders.put(stop("a"), refuse)
            orders.put(stop("b"), refuse)
        for _ in range(3):
            disk.gate.release()
        await anyio.wait_all_tasks_blocked()
        assert disk.taken == [stop("a"), stop("b")]
        orders.put(stop("a"), refuse)  # it has been carried out: this is a new one
        await anyio.wait_all_tasks_blocked()
        assert disk.taken == [stop("a"), stop("b"), stop("a")]
        group.cancel_scope.cancel()
