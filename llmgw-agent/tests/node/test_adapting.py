"""LoRA adapters on a real node: fetched, loaded and dropped while the engine serves."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmgw.contracts.engine import Probe
from llmgw.domain.commands import AdaptShard, LoraAdapter
from llmgw.domain.ids import Epoch, ModelName, ReplicaId, ShardId
from llmgw.domain.replicas import Failure, FailureCause, ShardState
from llmgw.domain.reports import ShardReport
from llmgw.domain.secret import Secret
from llmgw.testing.clock import FastClock
from llmgw_agent.node.host import Report, StepFailed
from llmgw_agent.node.probes import ask

# ruff: noqa: ASYNC110 -- the last report of a shard wakes nobody

pytestmark = pytest.mark.anyio


class Shelf:
    """Weights are folders of this shelf, by the name behind the scheme."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.missing: set[str] = set()

    async def ensure(self, ref: str, *, report: Report) -> Path:
        if ref in self.missing:
            message = f"weights {ref}: nobody has them"
            raise StepFailed(Failure(cause=FailureCause.WEIGHTS_MISSING, message=message))
        path = self.folder / ref.partition(":")[2]
        path.mkdir(parents=True, exist_ok=True)
        return path


@pytest.fixture
def shelf(node: Any, tmp_path: Path) -> Shelf:
    made = Shelf(tmp_path / "shelf")
    node.host = replace(node.host, weights=made)
    return made


def adapters(*refs: str) -> tuple[LoraAdapter, ...]:
    """`sql=a`: named sql, its weights in folder a."""
    pairs = (ref.split("=") for ref in refs)
    return tuple(LoraAdapter(name=ModelName(name), weights=f"x:{place}") for name, place in pairs)


async def adapt(node: Any, *refs: str) -> None:
    command = AdaptShard(
        epoch=Epoch(1), shard=ShardId("r1.0"), replica=ReplicaId("r1"), adapters=adapters(*refs)
    )
    assert await node.commands.apply(command) is None


async def wait_report(node: Any, matches: Callable[[ShardReport], bool]) -> ShardReport:
    with anyio.fail_after(15):
        while (report := node.report("r1.0")) is None or not matches(report):
            await anyio.sleep(0.02)
    found: ShardReport = report
    return found


def loaded(*names: str) -> Callable[[ShardReport], bool]:
    wanted = {(name, "") for name in names}
    return lambda report: {(item.name, item.problem) for item in report.adapters} == wanted


async def engine_has(node: Any, report: ShardReport) -> dict[str, str]:
    """Return what the engine itself lists."""
    assert report.credential is not None
    key = Secret(report.credential.reveal())
    port = report.shard.ports[0]
    answer = await ask("127.0.0.1", port, Probe(path="/v1/models"), key)
    found: dict[str, str] = node.host.adapters["fake"].read_adapters(report.spec, answer.text())
    return {name: Path(path).name for name, path in found.items()}


async def test_adapters_come_and_go_while_the_engine_serves(
    node: Any, spec: Any, shelf: Shelf
) -> None:
    async with node.running():
        await node.start(replace(spec(), adapters=adapters("sql=a")))
        before = await wait_report(node, loaded("sql"))
        await adapt(node, "sql=a", "poems=b")
        report = await wait_report(node, loaded("sql", "poems"))
        assert await engine_has(node, report) == {"sql": "a", "poems": "b"}
        await adapt(node, "poems=c")
        report = await wait_report(node, loaded("poems"))
        assert await engine_has(node, report) == {"poems": "c"}
        await adapt(node)
        report = await wait_report(node, loaded())
        assert await engine_has(node, report) == {}
    assert report.shard.pid == before.shard.pid
    assert [item.name for item in report.spec.adapters] == []


async def test_one_that_cannot_be_had_is_told_with_the_reason_and_tried_again(
    node: Any, spec: Any, shelf: Shelf
) -> None:
    node.host = replace(node.host, clock=FastClock(times=60))
    shelf.missing.add("x:b")
    async with node.running():
        await node.start(replace(spec(), adapters=adapters("sql=a", "poems=b")))
        report = await wait_report(node, lambda report: len(report.adapters) == 2)
        assert [item.problem for item in report.adapters] == ["", "weights x:b: nobody has them"]
        assert report.shard.state is ShardState.READY
        shelf.missing.clear()
        await wait_report(node, loaded("sql", "poems"))


async def test_a_restarted_engine_gets_them_again_and_an_adopted_one_keeps_them(
    node: Any, spec: Any, shelf: Shelf
) -> None:
    async with node.running():
        await node.start(replace(spec(), adapters=adapters("sql=a")))
        before = await wait_report(node, loaded("sql"))
    node.begin()
    await adapt(node, "poems=b")  # persisted by an agent that died before it could tell the engine
    async with node.running():
        report = await wait_report(node, loaded("poems"))
        assert report.shard.pid == before.shard.pid
        assert await engine_has(node, report) == {"poems": "b"}
        assert report.shard.pid is not None
        os.kill(report.shard.pid, signal.SIGKILL)
        again = await wait_report(
            node, lambda report: report.shard.incarnation == 2 and loaded("poems")(report)
        )
        assert await engine_has(node, again) == {"poems": "b"}
