"""The cache of weights: one download at a time of each, room for it, and nothing removed in use."""

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmgw.contracts.weights import FetchContext
from llmgw.domain.ids import ShardId
from llmgw.domain.replicas import FailureCause
from llmgw.errors import PermanentError
from llmgw_agent.node.host import StepFailed
from llmgw_agent.node.weights.room import Room

pytestmark = pytest.mark.anyio

CacheMaker = Callable[..., Any]


def nothing(done: float, total: float | None) -> None:
    pass


class Slow:
    """Delivers one byte at a time, as long as the gate lets it."""

    scheme = "slow"

    def __init__(self) -> None:
        self.fetches = 0
        self.gate = threading.Event()
        self.size = 3

    def problem(self, ref: str) -> str | None:
        return None

    def fetch(self, ref: str, context: FetchContext) -> Path:
        self.fetches += 1
        context.reserve(self.size)
        while not self.gate.wait(0.005):
            context.report(1, 3)
        path = context.folder / "model.gguf"
        path.write_bytes(b"x" * self.size)
        context.report(3, 3)
        return path


async def test_two_wishes_for_one_model_share_one_download(make_cache: CacheMaker) -> None:
    source = Slow()
    cache = make_cache(source)
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(lambda: cache.ensure("slow:m", report=nothing))
        await anyio.sleep(0.02)
        source.gate.set()
    assert source.fetches == 1


async def test_a_cancelled_download_stops_and_can_be_asked_for_again(
    make_cache: CacheMaker,
) -> None:
    source = Slow()
    cache = make_cache(source)
    with anyio.move_on_after(0.05):
        await cache.ensure("slow:m", report=nothing)
    source.gate.set()
    with anyio.fail_after(3):
        assert (await cache.ensure("slow:m", report=nothing)).exists()
    assert source.fetches == 2


async def test_removing_stops_a_download_and_leaves_nothing(
    tmp_path: Path, make_cache: CacheMaker
) -> None:
    source = Slow()
    cache = make_cache(source)
    async with anyio.create_task_group() as group:

        async def fetch() -> None:
            with pytest.raises(StepFailed, match="cancelled"):
                await cache.ensure("slow:m", report=nothing)

        group.start_soon(fetch)
        await anyio.sleep(0.05)
        assert [item.state for item in await cache.entries()] == ["downloading"]
        await cache.remove("slow:m")
    assert os.listdir(tmp_path / "weights") == []  # noqa: PTH208


async def test_what_a_shard_uses_is_not_removed(make_cache: CacheMaker) -> None:
    source = Slow()
    source.gate.set()
    cache = make_cache(source)
    path = await cache.ensure("slow:m", report=nothing)
    cache.users[ShardId("r1.0")] = frozenset({"slow:m"})
    with pytest.raises(PermanentError, match=r"r1\.0"):
        await cache.remove("slow:m")
    assert path.exists()
    cache.users.clear()
    await cache.remove("slow:m")
    assert not path.exists()
    with pytest.raises(PermanentError, match="no weights"):
        await cache.remove("slow:m")


@pytest.mark.parametrize("ref", ["path:/etc/passwd", "slow:../../etc", "..", "slow:.."])
async def test_nothing_outside_the_cache_can_be_removed(
    tmp_path: Path, make_cache: CacheMaker, ref: str
) -> None:
    (tmp_path / "weights").mkdir()
    with pytest.raises(PermanentError):
        await make_cache(Slow()).remove(ref)
    assert sorted(os.listdir(tmp_path)) == ["weights"]  # noqa: PTH208


async def test_the_lock_of_a_process_that_is_gone_blocks_nobody(make_cache: CacheMaker) -> None:
    source = Slow()
    source.gate.set()
    cache = make_cache(source)
    home = (await cache.ensure("slow:m", report=nothing)).parent.parent
    (home / "entry.json").unlink()
    assert (home / "lock").exists()
    with anyio.fail_after(2):
        await cache.ensure("slow:m", report=nothing)


async def test_another_agents_download_is_waited_for_and_then_used(make_cache: CacheMaker) -> None:
    source = Slow()
    source.gate.set()
    first, second = make_cache(source), make_cache(source)
    home = (await first.ensure("slow:m", report=nothing)).parent.parent
    with (home / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with anyio.move_on_after(0.1) as waited:
            await second.ensure("slow:m", report=nothing)
        assert waited.cancelled_caught
    await second.ensure("slow:m", report=nothing)
    assert source.fetches == 1


async def test_what_does_not_fit_is_refused_beforehand_with_the_figures(
    make_cache: CacheMaker,
) -> None:
    source = Slow()
    source.size = 1 << 60
    with pytest.raises(StepFailed, match=r"needs 1,152,921,504,606,846,976 bytes") as failed:
        await make_cache(source).ensure("slow:m", report=nothing)
    assert failed.value.failure.cause is FailureCause.DISK_FULL


async def test_downloads_at_the_same_time_are_added_up(tmp_path: Path) -> None:
    room = Room(tmp_path, reserve_bytes=0, budget_bytes=100)
    with room.claim("a"):
        room.reserve("a", 60, lambda _: 0)
        with pytest.raises(PermanentError, match="no room"):
            room.reserve("b", 60, lambda _: 0)
    room.reserve("b", 60, lambda _: 0)


def test_what_is_kept_free_and_what_is_beyond_the_budget_is_offered_to_nobody(
    tmp_path: Path,
) -> None:
    """Or a server would place what this node then refuses."""
    mib = 1 << 20
    whole = Room(tmp_path, reserve_bytes=0, budget_bytes=None).free_mib()
    assert whole is not None
    assert whole > 100
    reserved = Room(tmp_path, reserve_bytes=whole * mib * 2, budget_bytes=None)
    assert reserved.free_mib() == 0
    (tmp_path / "model.gguf").write_bytes(bytes(3 * mib))
    assert Room(tmp_path, reserve_bytes=0, budget_bytes=10 * mib).free_mib() == 7


async def test_what_nothing_uses_makes_room_the_longest_unused_first(
    make_cache: CacheMaker,
) -> None:
    source = Slow()
    source.gate.set()
    source.size = 40_000
    cache = make_cache(source, budget=100_000)
    for name in ("a", "b"):
        await cache.ensure(f"slow:{name}", report=nothing)
    cache.users[ShardId("r1.0")] = frozenset({"slow:a"})
    await cache.ensure("slow:c", report=nothing)
    assert {item.ref for item in cache.cached()} == {"slow:a", "slow:c"}


async def test_a_shared_folder_is_listed_by_both_agents(make_cache: CacheMaker) -> None:
    source = Slow()
    source.gate.set()
    first, second = make_cache(source), make_cache(source)
    await first.ensure("slow:m", report=nothing)
    assert [item.ref for item in await second.entries()] == ["slow:m"]
