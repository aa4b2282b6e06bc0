"""An agent that dies between any two steps, and the next one that makes it right (F30).

Invariants at the end: the shard is as ordered, exactly one engine runs or none, nothing of a
former try is left.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmgw.domain.commands import ShardSpec
from llmgw.domain.replicas import Failure, ShardState
from llmgw_agent.node.assignments import Assigned
from llmgw_agent.node.hands import Hands, NodeHands, TakenOver
from llmgw_agent.node.host import Host, Report
from llmgw_agent.node.incarnation import Incarnation
from llmgw_agent.node.shardfolder import LaunchRecord, ShardFolder, ShimExit, ShimState
from llmgw_agent.node.shards import Life, Looked

pytestmark = pytest.mark.anyio

STEPS = 34  #: more than a start, and a stop, have


class Death(BaseException):
    """The agent is gone, as by SIGKILL: no handler of it runs."""


class Countdown:
    """Dies at the step with this number."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.died_at = ""

    def step(self, name: str) -> None:
        if self.died_at:
            raise Death
        self.left -= 1
        if self.left == 0:
            self.died_at = name
            raise Death


class DyingFolder(ShardFolder):
    """A shard's folder whose every access is a step."""

    def __init__(self, path: Path, countdown: Countdown) -> None:
        super().__init__(path)
        self._countdown = countdown

    def prepare(self, record: LaunchRecord) -> None:
        self._countdown.step("before prepare")
        super().prepare(record)
        self._countdown.step("after prepare")

    def mark_ready(self, run: int) -> None:
        self._countdown.step("before mark ready")
        super().mark_ready(run)
        self._countdown.step("after mark ready")

    def state(self) -> ShimState | None:
        self._countdown.step("state")
        return super().state()

    def exit(self) -> ShimExit | None:
        self._countdown.step("exit")
        return super().exit()

    def remove(self) -> None:
        self._countdown.step("before remove")
        super().remove()
        self._countdown.step("after remove")


class DyingHands:
    """Hands whose every phase is a step before and after."""

    def __init__(
        self, host: Host, folder: ShardFolder, assigned: Assigned, dying: Countdown
    ) -> None:
        dying_folder = DyingFolder(folder.path, dying)
        self._real = NodeHands(host=host, folder=dying_folder, assigned=assigned)
        self._step = dying.step

    @contextmanager
    def _around(self, name: str) -> Iterator[None]:
        self._step(f"before {name}")
        yield
        self._step(f"after {name}")

    @property
    def incarnation(self) -> Incarnation:
        return self._real.incarnation

    async def take_over(self, spec: ShardSpec) -> TakenOver:
        with self._around("take over"):
            return await self._real.take_over(spec)

    async def resolve(self, life: Life, report: Report) -> None:
        with self._around("resolve"):
            await self._real.resolve(life, report)

    async def fetch(self, life: Life, report: Report) -> None:
        with self._around("fetch"):
            await self._real.fetch(life, report)

    async def launch(self, life: Life, assigned: Assigned) -> None:
        with self._around("launch"):
            await self._real.launch(life, assigned)

    async def look(self, life: Life) -> Looked:
        with self._around("look"):
            return await self._real.look(life)

    async def wait_ended(self, life: Life) -> Failure:
        return await self._real.wait_ended(life)

    async def end(self, life: Life, assigned: Assigned) -> None:
        with self._around("end"):
            await self._real.end(life, assigned)

    async def clear(self, life: Life) -> bool:
        with self._around("clear"):
            return await self._real.clear(life)

    async def fall_asleep(self, life: Life, level: int) -> None:
        with self._around("fall asleep"):
            await self._real.fall_asleep(life, level)

    async def wake_up(self, life: Life) -> None:
        with self._around("wake up"):
            await self._real.wake_up(life)

    async def mark_ready(self, life: Life) -> None:
        with self._around("mark ready"):
            await self._real.mark_ready(life)

    async def adapt(self, spec: ShardSpec) -> None:
        await self._real.adapt(spec)

    async def forget(self) -> None:
        with self._around("forget"):
            await self._real.forget()


def dying(countdown: Countdown) -> Any:
    def make(host: Host, folder: ShardFolder, assigned: Assigned) -> Hands:
        return DyingHands(host, folder, assigned, countdown)

    return make


async def run_until_death(node: Any, done: Any) -> None:
    """Run an agent until it dies, or until `done` says that there were no more steps."""
    try:
        async with node.running():
            with anyio.fail_after(10):
                while not done():  # noqa: ASYNC110 -- waits for a death or its absence
                    await anyio.sleep(0.01)
    except BaseExceptionGroup as group:
        if (other := group.split(Death)[1]) is not None:
            raise other from None


def is_ready(node: Any) -> bool:
    report = node.report("r1.0")
    return report is not None and report.shard.state is ShardState.READY


@pytest.mark.parametrize("at", range(1, STEPS))
async def test_a_start_is_finished_by_the_next_agent(node: Any, spec: Any, at: int) -> None:
    await node.start(spec(children=1))
    real = node.make_hands
    node.make_hands = dying(Countdown(at))
    await run_until_death(node, lambda: is_ready(node))
    node.make_hands = real
    async with node.running():
        report = await node.wait_state("r1.0", ShardState.READY)
        mains = [item.pid for item in node.engine_processes("r1.0")]
        assert report.shard.pid in mains
        assert len(mains) == 2  # the engine and its one helper, not those of a former try
        assert report.shard.restarts == 0, report.shard.failure


@pytest.mark.parametrize("at", range(1, STEPS))
async def test_a_stop_is_finished_by_the_next_agent(node: Any, spec: Any, at: int) -> None:
    async with node.running():
        await node.start(spec(children=1))
        await node.wait_state("r1.0", ShardState.READY)
    node.begin()
    await node.stop("r1.0", grace_s=0.3)
    real = node.make_hands
    node.make_hands = dying(Countdown(at))
    await run_until_death(node, lambda: node.supervisor.is_idle())
    node.make_hands = real
    async with node.running():
        with anyio.fail_after(10):
            while not node.supervisor.is_idle():  # noqa: ASYNC110 -- the end wakes nobody
                await anyio.sleep(0.01)
    assert node.engine_processes() == set()
    assert not (node.state / "shards" / "r1.0").exists()
