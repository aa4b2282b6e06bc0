"""Two agents on one folder of weights: neither takes from the other what it uses or fetches."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from llmgw.contracts.weights import FetchContext
from llmgw.domain.ids import ShardId
from llmgw.domain.replicas import FailureCause
from llmgw.errors import PermanentError
from llmgw_agent.node.host import StepFailed
from llmgw_agent.node.weights.cache import WeightCache
from llmgw_agent.node.weights.entries import locked
from llmgw_agent.node.weights.room import Room

pytestmark = pytest.mark.anyio

PROGRAM = Path(__file__).with_name("shared_cache_program.py")
SIZE = 1000


class Simple:
    scheme = "simple"

    def problem(self, ref: str) -> str | None:
        return None

    def fetch(self, ref: str, context: FetchContext) -> Path:
        context.reserve(SIZE)
        path = context.folder / "model.gguf"
        path.write_bytes(b"x" * SIZE)
        return path


class Agent:
    """One agent's cache, and what its shards use."""

    def __init__(self, folder: Path, name: str, *, budget: int | None = None) -> None:
        self.users: dict[ShardId, frozenset[str]] = {}
        self.cache = WeightCache(
            folder,
            sources={"simple": Simple()},
            roots=(),
            users=lambda: self.users,
            room=Room(folder, reserve_bytes=0, budget_bytes=budget),
            secrets={},
            agent=name,
        )

    async def use(self, ref: str) -> Path:
        self.users[ShardId("r1.0")] = frozenset({ref})
        return await self.cache.ensure(ref, report=lambda _done, _total: None)


def home_of(folder: Path) -> Path:
    (home,) = folder.iterdir()
    return home


def marks(folder: Path) -> list[Path]:
    return list(folder.glob("*/used-by/*"))


def test_two_processes_that_fetch_use_and_remove_at_random_disturb_nobody(tmp_path: Path) -> None:
    agents = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path / "weights"), f"agent-{seed}", str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    for agent in agents:
        said, complained = agent.communicate(timeout=18)
        assert agent.returncode == 0, complained
        assert int(said) > 10


async def test_what_another_agent_uses_is_neither_removed_nor_evicted(tmp_path: Path) -> None:
    one, two = Agent(tmp_path, "one"), Agent(tmp_path, "two", budget=SIZE + SIZE // 2)
    path = await one.use("simple:a")
    with pytest.raises(PermanentError, match="another agent that shares this folder"):
        await two.cache.remove("simple:a")
    with pytest.raises(StepFailed) as failed:
        await two.use("simple:b")
    assert failed.value.failure.cause is FailureCause.DISK_FULL
    assert path.exists()


async def test_use_is_marked_beyond_the_agents_life_and_until_it_ends(tmp_path: Path) -> None:
    one, two = Agent(tmp_path, "one"), Agent(tmp_path, "two")
    path = await one.use("simple:a")
    again = Agent(tmp_path, "one")  # restarted: its engine runs on
    again.users = dict(one.users)
    async with anyio.create_task_group() as group:
        await group.start(again.cache.run)
        with pytest.raises(PermanentError, match="another agent"):
            await two.cache.remove("simple:a")
        again.users.clear()
        again.cache._changed.set()  # as a minute does
        with anyio.fail_after(5):
            while marks(tmp_path):  # noqa: ASYNC110 -- a file tells nobody
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    await two.cache.remove("simple:a")
    assert not path.exists()


async def test_what_another_agent_is_at_is_not_evicted(tmp_path: Path) -> None:
    one, two = Agent(tmp_path, "one"), Agent(tmp_path, "two", budget=SIZE + SIZE // 2)
    path = await one.use("simple:a")
    one.users.clear()
    home = home_of(tmp_path)
    (home / "used-by" / "one").unlink()

    def hold(begun: threading.Event, end: threading.Event) -> None:
        with locked(home, threading.Event()):
            begun.set()
            end.wait()

    begun, end = threading.Event(), threading.Event()
    holder = threading.Thread(target=hold, args=(begun, end))
    holder.start()
    try:
        await anyio.to_thread.run_sync(begun.wait)
        with pytest.raises(StepFailed):
            await two.use("simple:b")
        assert path.exists()
    finally:
        end.set()
        holder.join()
    await two.use("simple:b")
    assert not path.exists()


async def test_a_folder_that_was_removed_while_somebody_waited_is_made_anew(tmp_path: Path) -> None:
    one, two = Agent(tmp_path, "one"), Agent(tmp_path, "two")
    await one.use("simple:a")
    one.users.clear()
    home = home_of(tmp_path)
    (home / "used-by" / "one").unlink()
    begun = threading.Event()

    def remove() -> None:
        with locked(home, threading.Event()):
            begun.set()
            time.sleep(0.2)
            shutil.rmtree(home)

    remover = threading.Thread(target=remove)
    remover.start()
    await anyio.to_thread.run_sync(begun.wait)
    path = await two.use("simple:a")
    remover.join()
    assert path.read_bytes() == b"x" * SIZE
