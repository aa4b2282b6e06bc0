"""The node as the arbiter of its devices, ports and epochs."""

import os
import socket
from dataclasses import replace
from typing import Any

import anyio
import anyio.to_thread
import pytest

from llmgw.domain.commands import DrainShard, Peer
from llmgw.domain.ids import DeviceId, Epoch, NodeId, ReplicaId, ShardId
from llmgw.domain.nodes import Device, DeviceHealth
from llmgw_agent.node.assignments import Intent
from llmgw_agent.node.launching import profile_of

pytestmark = pytest.mark.anyio

DEVICE = Device(id=DeviceId("GPU-1"), index=0, kind="H100", vendor="nvidia", memory_mib=80)


def code(rejection: Any) -> str | None:
    return None if rejection is None else str(rejection.code)


async def test_an_order_is_on_disk_before_it_is_answered(node: Any, spec: Any) -> None:
    assert await node.start(spec()) is None
    node.begin()  # another agent on the same folder
    assert list(node.assignments.all()) == ["r1.0"]


async def test_an_older_epoch_is_refused_for_every_kind_of_order(node: Any, spec: Any) -> None:
    await node.start(spec(), epoch=7)
    assert code(await node.start(spec("r2.0"), epoch=6)) == "stale_epoch"
    assert code(await node.stop("r1.0", epoch=6)) == "stale_epoch"
    drain = DrainShard(epoch=Epoch(6), shard=ShardId("r1.0"), replica=ReplicaId("r1"))
    assert code(await node.commands.apply(drain)) == "stale_epoch"
    assert node.assignments.get("r1.0").intent is Intent.RUN


async def test_repeating_an_order_changes_nothing_but_its_epoch(node: Any, spec: Any) -> None:
    wanted = spec(say=["x"])
    assert await node.start(wanted, epoch=1) is None
    assert await node.start(wanted, epoch=2) is None
    assert node.assignments.get("r1.0").epoch == 2
    node.begin()
    assert await node.start(wanted, epoch=3) is None  # after a round trip through the file
    assert code(await node.start(replace(wanted, weights="path:/other"), epoch=3)) == "id_taken"


async def test_a_late_drain_does_not_bring_back_what_is_being_stopped(node: Any, spec: Any) -> None:
    await node.start(spec())
    await node.stop("r1.0", grace_s=3.0)
    await node.commands.apply(
        DrainShard(epoch=Epoch(1), shard=ShardId("r1.0"), replica=ReplicaId("r1"))
    )
    assigned = node.assignments.get("r1.0")
    assert (assigned.intent, assigned.grace_s) == (Intent.STOP, 3.0)


async def test_a_stop_of_an_unknown_shard_is_done_already_and_its_epoch_counts(node: Any) -> None:
    assert await node.stop("r9.0", epoch=5) is None
    assert node.assignments.epoch == 5


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"engine": "vlm"}, "unknown_engine"),
        ({"options": {"no_such": 1}}, "bad_option"),
        ({"env": {"LD_PRELOAD": "/x.so"}}, "bad_option"),
        ({"env": {"PYTHONPATH": "/x"}}, "bad_option"),
        ({"devices": (DeviceId("GPU-9"),)}, "unknown_device"),
        ({"id": ShardId("../up")}, "bad_option"),
    ],
)
async def test_what_cannot_run_here_is_refused_before_anything_is_written(
    node: Any, spec: Any, change: dict[str, Any], want: str
) -> None:
    node.devices = (DEVICE,)
    rejection = await node.start(replace(spec(), **change))
    assert code(rejection) == want
    assert rejection.message
    assert not (node.state / "assigned.json").exists()


def test_a_rank_is_checked_as_a_part_of_what_it_belongs_to(spec: Any) -> None:
    peers = tuple(
        Peer(rank=rank, node=NodeId(f"n{rank}"), address="127.0.0.1", ports=(20000,), devices=1)
        for rank in range(2)
    )
    profile = profile_of(replace(spec(), peers=peers))
    assert (profile.nodes, profile.devices.count) == (2, 2)
    assert profile.fabric, "an engine may ask for one where it spans nodes"
    assert profile_of(spec()).fabric is None


async def test_a_device_has_one_owner(node: Any, spec: Any) -> None:
    node.devices = (DEVICE,)
    await node.start(replace(spec(), devices=(DEVICE.id,)))
    rejection = await node.start(replace(spec("r2.0"), devices=(DEVICE.id,)))
    assert code(rejection) == "device_busy"
    assert "r1.0" in rejection.message


async def test_a_failed_device_is_not_given_out(node: Any, spec: Any) -> None:
    node.devices = (replace(DEVICE, health=DeviceHealth.FAILED, health_reason="lost"),)
    assert code(await node.start(replace(spec(), devices=(DEVICE.id,)))) == "device_failed"


async def test_a_port_that_somebody_listens_on_is_refused(node: Any, spec: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert code(await node.start(spec(port=other.getsockname()[1]))) == "port_in_use"


async def test_two_shards_never_get_one_port(node: Any, spec: Any) -> None:
    first = spec()
    await node.start(first)
    assert code(await node.start(spec("r2.0", port=first.ports[0]))) == "port_in_use"


async def test_a_full_disk_refuses_the_order_and_keeps_the_old_set(node: Any, spec: Any) -> None:
    await node.start(spec())
    (node.state / ".assigned.json.new").symlink_to("/dev/full")
    assert code(await node.start(spec("r2.0"))) == "disk_full"
    assert list(node.assignments.all()) == ["r1.0"]
    assert await node.start(spec("r2.0")) is None  # the link was removed with the failed write


async def test_a_slow_disk_delays_orders_and_nothing_else(node: Any, spec: Any) -> None:
    """The write waits in a thread; the loop goes on, and so do orders' checks, one by one."""
    pipe = node.state / ".assigned.json.new"
    os.mkfifo(pipe)  # opened for writing only once somebody reads
    done: list[str | None] = []

    async def order(shard: str, epoch: int) -> None:
        done.append(code(await node.start(spec(shard), epoch=epoch)))

    async with anyio.create_task_group() as group:
        group.start_soon(order, "r1.0", 7)
        for _ in range(20):
            await anyio.sleep(0.01)  # as often as heartbeats of a busy node
        group.start_soon(order, "r2.0", 6)
        await anyio.sleep(0.05)
        assert done == []
        assert dict(node.assignments.all()) == {}
        await anyio.to_thread.run_sync(pipe.read_bytes)
    # The first failed, for a pipe cannot be synced; the second was checked after it, not before.
    assert done == ["io_error", None]
