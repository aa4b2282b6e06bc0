import anyio
import pytest

from llmgw.domain.ids import DeviceId, Epoch, NodeId, SessionId, ShardId
from llmgw.domain.loads import EngineLoad
from llmgw.domain.nodes import Device, NodeInventory
from llmgw.domain.replicas import ShardState
from llmgw.domain.reports import ShardReport
from llmgw.testing import values
from llmgw_agent.node.outbox import Allegiance, Outbox

pytestmark = pytest.mark.anyio
SESSION = SessionId("boot/1")
DEVICE = Device(id=DeviceId("GPU-1"), index=0, kind="H100", vendor="nvidia", memory_mib=80)
INVENTORY = NodeInventory(
    node=NodeId("n1"),
    agent_uid="u",
    boot_id="b",
    machine_id="m",
    agent_version="0.1.0",
    hostname="h",
    data_address="127.0.0.1",
    devices=(DEVICE,),
)


def outbox() -> Outbox:
    return Outbox(
        inventory=lambda: INVENTORY, allegiance=lambda: Allegiance(epoch=Epoch(7), cluster_id="c")
    )


def report(shard: str, state: ShardState) -> ShardReport:
    return values.report("n1", values.shard(shard), state)


async def test_a_slow_link_finds_the_newest_report_of_each_shard_and_no_history() -> None:
    box = outbox()
    with box.subscribe() as link:
        box.publish(report("a.0", ShardState.ASSIGNED))
        box.publish(report("b.0", ShardState.ASSIGNED))
        box.publish(report("a.0", ShardState.READY))
        reports = await link.next_reports()
    assert {item.shard.id: item.shard.state for item in reports} == {
        "a.0": ShardState.READY,
        "b.0": ShardState.ASSIGNED,
    }


async def test_a_report_that_says_nothing_new_wakes_nobody() -> None:
    box = outbox()
    box.publish(report("a.0", ShardState.READY))
    with box.subscribe() as link:
        box.publish(report("a.0", ShardState.READY))
        with anyio.move_on_after(0.01) as scope:
            await link.next_reports()
    assert scope.cancelled_caught


async def test_two_servers_each_hear_of_every_change() -> None:
    box = outbox()
    with box.subscribe() as one, box.subscribe() as other:
        box.publish(report("a.0", ShardState.READY))
        assert await one.next_reports() == await other.next_reports()


async def test_a_stopped_shard_is_told_once_and_registered_no_more() -> None:
    box = outbox()
    box.publish(report("a.0", ShardState.READY))
    with box.subscribe() as link:
        box.retire(report("a.0", ShardState.STOPPED))
        (last,) = await link.next_reports()
    assert last.shard.state is ShardState.STOPPED
    assert box.registration(SESSION).shards == ()


async def test_a_registration_holds_everything_there_is_to_know() -> None:
    box = outbox()
    box.publish(report("a.0", ShardState.READY))
    registration = box.registration(SESSION)
    assert (registration.epoch, registration.cluster_id) == (7, "c")
    assert registration.inventory == INVENTORY
    assert [item.shard.id for item in registration.shards] == ["a.0"]


async def test_a_heartbeat_repeats_devices_only_when_they_changed() -> None:
    box = outbox()
    load = EngineLoad(running=1, waiting=0)
    box.measured(ShardId("a.0"), load)
    with box.subscribe() as link:
        first, second = link.heartbeat(SESSION, 1), link.heartbeat(SESSION, 2)
    assert first.devices == (DEVICE,)
    assert second.devices == ()
    assert second.loads == ((ShardId("a.0"), load),)


async def test_a_load_that_cannot_be_read_is_left_out_rather_than_zero() -> None:
    box = outbox()
    box.measured(ShardId("a.0"), EngineLoad(running=1, waiting=0))
    box.measured(ShardId("a.0"), None)
    assert box.heartbeat(SESSION, 1).loads == ()
