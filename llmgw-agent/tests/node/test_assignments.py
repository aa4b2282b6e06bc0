"""The node's orders on its disk."""

from pathlib import Path
from typing import Any

import pytest

from llmgw.domain.ids import Epoch, ShardId
from llmgw.errors import ConfigError
from llmgw_agent.node.assignments import Assigned, Assignments, Intent
from llmgw_agent.node.durable import DiskFull, write_atomically

pytestmark = pytest.mark.anyio


async def test_orders_survive_the_agent(tmp_path: Path, spec: Any) -> None:
    path = tmp_path / "assigned.json"
    first = Assignments(path)
    assigned = Assigned(
        spec=spec(nested={"a": [1, 2]}), epoch=Epoch(7), intent=Intent.STOP, grace_s=3.0
    )
    async with first.turn:
        await first.put(assigned)
    await first.join("c1")
    again = Assignments(path)
    assert again.all() == {ShardId("r1.0"): assigned}
    assert (again.epoch, again.cluster_id) == (7, "c1")
    assert path.stat().st_mode & 0o777 == 0o600


async def test_the_epoch_never_falls(tmp_path: Path, spec: Any) -> None:
    orders = Assignments(tmp_path / "assigned.json")
    async with orders.turn:
        await orders.put(Assigned(spec=spec(), epoch=Epoch(7)))
        await orders.put(Assigned(spec=spec("r2.0"), epoch=Epoch(3)))
        await orders.raise_epoch(Epoch(5))
        await orders.remove(ShardId("r1.0"))
    assert orders.epoch == 7


async def test_another_cluster_is_not_obeyed_until_the_node_changes_over(tmp_path: Path) -> None:
    orders = Assignments(tmp_path / "assigned.json")
    assert orders.foreign_cluster("c1") is None
    await orders.join("c1")
    await orders.join("c2")
    assert orders.cluster_id == "c1"
    assert "--rejoin" in (orders.foreign_cluster("c2") or "")
    async with orders.turn:
        await orders.raise_epoch(Epoch(9))
    await orders.join("c2", anew=True)
    assert (orders.cluster_id, orders.epoch) == ("c2", 0)


def test_a_file_that_is_not_ours_stops_the_agent_instead_of_its_engines(tmp_path: Path) -> None:
    path = tmp_path / "assigned.json"
    path.write_text("{half a fi")
    with pytest.raises(ConfigError, match="move it away"):
        Assignments(path)


async def test_whoever_listens_is_told_of_changes_only(tmp_path: Path, spec: Any) -> None:
    told: list[int] = []
    orders = Assignments(tmp_path / "assigned.json", on_change=lambda: told.append(1))
    assigned = Assigned(spec=spec(), epoch=Epoch(1))
    async with orders.turn:
        await orders.put(assigned)
        await orders.put(assigned)
    assert told == [1]


async def test_nothing_is_changed_out_of_turn(tmp_path: Path, spec: Any) -> None:
    orders = Assignments(tmp_path / "assigned.json")
    with pytest.raises(RuntimeError, match="turn"):
        await orders.put(Assigned(spec=spec(), epoch=Epoch(1)))
    assert not (tmp_path / "assigned.json").exists()


def test_a_full_disk_changes_nothing_and_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    write_atomically(path, b"old")
    # /dev/full beside it: the write of the new version fails as on a full disk.
    (tmp_path / ".kept.new").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match="kept"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_crash_before_the_rename_leaves_the_old_version(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    write_atomically(path, b"old")
    (tmp_path / ".kept.new").write_bytes(b"half of the n")
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["kept"]
