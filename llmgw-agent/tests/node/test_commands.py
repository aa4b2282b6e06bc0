"""The node as the arbiter of its devices, ports and epochs."""

import socket
from dataclasses import replace
from typing import Any

import pytest

from llmgw.domain.commands import DrainShard
from llmgw.domain.ids import DeviceId, Epoch, ReplicaId, ShardId
from llmgw.domain.nodes import Device, DeviceHealth
from llmgw_agent.node.assignments import Intent

DEVICE = Device(id=DeviceId("GPU-1"), index=0, kind="H100", vendor="nvidia", memory_mib=80)


def code(rejection: Any) -> str | None:
    return None if rejection is None else str(rejection.code)


def test_an_order_is_on_disk_before_it_is_answered(node: Any, spec: Any) -> None:
    assert node.start(spec()) is None
    node.begin()  # another agent on the same folder
    assert list(node.assignments.all()) == ["r1.0"]


def test_an_older_epoch_is_refused_for_every_kind_of_order(node: Any, spec: Any) -> None:
    node.start(spec(), epoch=7)
    assert code(node.start(spec("r2.0"), epoch=6)) == "stale_epoch"
    assert code(node.stop("r1.0", epoch=6)) == "stale_epoch"
    drain = DrainShard(epoch=Epoch(6), shard=ShardId("r1.0"), replica=ReplicaId("r1"))
    assert code(node.commands.apply(drain)) == "stale_epoch"
    assert node.assignments.get("r1.0").intent is Intent.RUN


def test_repeating_an_order_changes_nothing_but_its_epoch(node: Any, spec: Any) -> None:
    wanted = spec(say=["x"])
    assert node.start(wanted, epoch=1) is None
    assert node.start(wanted, epoch=2) is None
    assert node.assignments.get("r1.0").epoch == 2
    node.begin()
    assert node.start(wanted, epoch=3) is None  # after a round trip through the file
    assert code(node.start(replace(wanted, weights="path:/other"), epoch=3)) == "id_taken"


def test_a_late_drain_does_not_bring_back_what_is_being_stopped(node: Any, spec: Any) -> None:
    node.start(spec())
    node.stop("r1.0", grace_s=3.0)
    node.commands.apply(DrainShard(epoch=Epoch(1), shard=ShardId("r1.0"), replica=ReplicaId("r1")))
    assigned = node.assignments.get("r1.0")
    assert (assigned.intent, assigned.grace_s) == (Intent.STOP, 3.0)


def test_a_stop_of_an_unknown_shard_is_done_already_and_its_epoch_counts(node: Any) -> None:
    assert node.stop("r9.0", epoch=5) is None
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
def test_what_cannot_run_here_is_refused_before_anything_is_written(
    node: Any, spec: Any, change: dict[str, Any], want: str
) -> None:
    node.devices = (DEVICE,)
    rejection = node.start(replace(spec(), **change))
    assert code(rejection) == want
    assert rejection.message
    assert not (node.state / "assigned.json").exists()


def test_a_device_has_one_owner(node: Any, spec: Any) -> None:
    node.devices = (DEVICE,)
    node.start(replace(spec(), devices=(DEVICE.id,)))
    rejection = node.start(replace(spec("r2.0"), devices=(DEVICE.id,)))
    assert code(rejection) == "device_busy"
    assert "r1.0" in rejection.message


def test_a_failed_device_is_not_given_out(node: Any, spec: Any) -> None:
    node.devices = (replace(DEVICE, health=DeviceHealth.FAILED, health_reason="lost"),)
    assert code(node.start(replace(spec(), devices=(DEVICE.id,)))) == "device_failed"


def test_a_port_that_somebody_listens_on_is_refused(node: Any, spec: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert code(node.start(spec(port=other.getsockname()[1]))) == "port_in_use"


def test_two_shards_never_get_one_port(node: Any, spec: Any) -> None:
    first = spec()
    node.start(first)
    assert code(node.start(spec("r2.0", port=first.ports[0]))) == "port_in_use"


def test_a_full_disk_refuses_the_order_and_keeps_the_old_set(node: Any, spec: Any) -> None:
    node.start(spec())
    (node.state / ".assigned.json.new").symlink_to("/dev/full")
    assert code(node.start(spec("r2.0"))) == "disk_full"
    assert list(node.assignments.all()) == ["r1.0"]
    assert node.start(spec("r2.0")) is None  # the link was removed with the failed write
