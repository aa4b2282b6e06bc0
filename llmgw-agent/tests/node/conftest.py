"""A node in a folder: real processes, the fake engine, no server."""

import os
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmgw.clock import SystemClock
from llmgw.contracts.engine import EngineHome
from llmgw.contracts.weights import WeightSource
from llmgw.domain.commands import ShardSpec, StartShard, StopShard
from llmgw.domain.ids import Epoch, ModelName, NodeId, ReplicaId, ShardId
from llmgw.domain.nodes import Device, NodeInventory
from llmgw.domain.replicas import ShardState
from llmgw.domain.reports import Rejection, ShardReport
from llmgw.testing import values
from llmgw.testing.fake_adapter import FakeEngineAdapter
from llmgw_agent.node import processes
from llmgw_agent.node.assignments import Assigned, Assignments
from llmgw_agent.node.commands import CommandHandler
from llmgw_agent.node.hands import Hands, NodeHands
from llmgw_agent.node.host import Host, Report
from llmgw_agent.node.logs import AgentLog, LogBook
from llmgw_agent.node.outbox import Allegiance, Outbox
from llmgw_agent.node.shardfolder import ShardFolder
from llmgw_agent.node.supervisor import Supervisor
from llmgw_agent.node.weights.cache import WeightCache
from llmgw_agent.node.weights.room import Room


class HomeHere:
    """Every engine runs on this Python."""

    async def resolve(self, spec: ShardSpec, report: Report) -> EngineHome:
        return EngineHome()


class WeightsHere:
    """All weights are one file that is already there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def ensure(self, ref: str, *, report: Report) -> Path:
        return self.path


class Node:
    """An agent's node half on one state folder, which it can be run on again and again."""

    def __init__(self, state: Path) -> None:
        self.state = state
        # Of its own: agents with one uid would end each other's engines as orphans.
        self.uid = uuid.uuid4().hex
        self.devices: tuple[Device, ...] = ()
        self.guarded = True
        self.make_hands: Callable[[Host, ShardFolder, Assigned], Hands] = _real_hands
        self.host = Host(
            node=NodeId("n1"),
            agent_uid=self.uid,
            boot_id=processes.boot_id(),
            address="127.0.0.1",
            clock=SystemClock(),
            adapters={"fake": FakeEngineAdapter()},
            homes=HomeHere(),
            weights=WeightsHere(state / "weights.gguf"),
            devices=self._devices,
            lock_folder=state / "locks",
            environment={"PATH": os.environ["PATH"], "CANARY_TOKEN": "not for engines"},
        )
        (state / "locks").mkdir(parents=True, exist_ok=True)
        self.begin()

    async def _devices(self) -> tuple[Device, ...]:
        return self.devices

    def begin(self) -> None:
        """Be a fresh agent on the same folder."""
        self.assignments = Assignments(self.state / "assigned.json")
        self.outbox = Outbox(
            inventory=lambda: NodeInventory(
                node=NodeId("n1"),
                agent_uid=self.uid,
                boot_id="b",
                machine_id="m",
                agent_version="0",
                hostname="h",
                data_address="127.0.0.1",
                devices=self.devices,
            ),
            allegiance=lambda: Allegiance(
                epoch=self.assignments.epoch, cluster_id=self.assignments.cluster_id
            ),
        )
        self.logs = LogBook(agent=AgentLog(), clock=self.host.clock)
        self.commands = CommandHandler(
            node=NodeId("n1"),
            assignments=self.assignments,
            adapters=self.host.adapters,
            devices=lambda: self.devices,
            weights_problem=lambda _: None,
            address="127.0.0.1",
            guarded=self.guarded,
        )
        self.supervisor = Supervisor(
            host=self.host,
            assignments=self.assignments,
            shards=self.state / "shards",
            voice=self.outbox,
            logs=self.logs,
            hands=self.make_hands,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run a fresh agent; leaving it is its death: engines stay."""
        self.begin()
        async with anyio.create_task_group() as group:
            await group.start(self.supervisor.run)
            yield
            group.cancel_scope.cancel()

    async def start(self, spec: ShardSpec, *, epoch: int = 1) -> Rejection | None:
        return await self.commands.apply(StartShard(epoch=Epoch(epoch), spec=spec))

    async def stop(
        self, shard: str, *, epoch: int = 1, grace_s: float | None = None
    ) -> Rejection | None:
        return await self.commands.apply(
            StopShard(
                epoch=Epoch(epoch), shard=ShardId(shard), replica=ReplicaId("r1"), grace_s=grace_s
            )
        )

    def report(self, shard: str) -> ShardReport | None:
        return next((item for item in self.outbox.reports() if item.shard.id == shard), None)

    async def wait_state(
        self, shard: str, state: ShardState, *, limit_s: float = 15
    ) -> ShardReport:
        """Wait until the shard is reported in this state."""
        last: ShardReport | None = None
        with anyio.move_on_after(limit_s):
            with self.outbox.subscribe() as link:
                last = self.report(shard)
                while last is None or last.shard.state is not state:
                    for item in await link.next_reports():
                        if item.shard.id == shard:
                            last = item
                return last
        raise AssertionError(f"{shard} is not {state} after {limit_s} s: {last and last.shard}")

    def engine_processes(self, shard: str = "") -> set[processes.Process]:
        mark = f"{self.uid}/{shard}"
        return {
            entry.process
            for entry in processes.process_table().values()
            if entry.cookie and entry.cookie.startswith(mark)
        }


class Cache(WeightCache):
    """A cache in a folder, with room and users as the test says."""

    def __init__(self, folder: Path, *given: WeightSource, **fields: Any) -> None:
        self.users: dict[ShardId, frozenset[str]] = {}
        super().__init__(
            folder / "weights",
            sources={source.scheme: source for source in given},
            roots=fields.get("roots", ()),
            networks=("127.0.0.0/8",),
            users=lambda: self.users,
            room=Room(
                folder / "weights",
                reserve_bytes=fields.get("reserve", 0),
                budget_bytes=fields.get("budget"),
            ),
            secrets={},
            agent=fields.get("agent", "agent-1"),
        )


def _real_hands(host: Host, folder: ShardFolder, assigned: Assigned) -> Hands:
    return NodeHands(host=host, folder=folder, assigned=assigned)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


SpecMaker = Callable[..., ShardSpec]


@pytest.fixture
def spec() -> SpecMaker:
    """Make the spec of a shard of the fake engine; keywords are the engine's options."""

    def make(shard: str = "r1.0", *, port: int | None = None, **options: object) -> ShardSpec:
        return values.shard(
            shard,
            model=ModelName("acme/tiny"),
            served_names=(ModelName("acme/tiny"), ModelName("tiny")),
            weights="path:/w",
            options=options,
            ports=(port or free_port(),),
        )

    return make


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    # Whatever a failed test left: engines by their cookie, shims by their lock's folder.
    for process in made.engine_processes():
        processes.send_signal(process, signal.SIGKILL)
    for path in (tmp_path / "shards").glob("*"):
        if (left := ShardFolder(path).state()) is not None:
            processes.send_signal(left.shim, signal.SIGKILL)


@pytest.fixture
def make_cache(tmp_path: Path) -> Callable[..., Cache]:
    """Make a cache on the test's folder, of these sources; keywords are its settings."""
    return partial(Cache, tmp_path)
