"""A fleet of nodes in memory: takes commands, and reports what a test tells it to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import anyio
from anyio.abc import TaskStatus

from llmgw.contracts.sinks import ReportSink
from llmgw.domain.commands import (
    AdaptShard,
    Command,
    DrainShard,
    ShardSpec,
    SleepShard,
    StartShard,
    WakeShard,
)
from llmgw.domain.ids import Epoch, NodeId, SessionId, ShardId
from llmgw.domain.loads import EngineLoad
from llmgw.domain.nodes import NodeInventory
from llmgw.domain.replicas import Failure, Shard, ShardState
from llmgw.domain.reports import AdapterReport, Heartbeat, Registration, Rejection, ShardReport
from llmgw.domain.secret import Secret
from llmgw.errors import NodeUnreachable


class MemoryNode:
    """One node: the assignments that it persists, and the arbiter of its devices.

    Behaves as an agent must: edits are idempotent, an older epoch and a device that is owned
    are refused, a stopped shard vanishes from its list.
    """

    def __init__(self, inventory: NodeInventory) -> None:
        self.inventory = inventory
        self.epoch = Epoch(0)
        self.cluster_id: str | None = None
        self.shards: dict[ShardId, ShardReport] = {}
        self.rejections: list[Rejection] = []
        self.starts: list[ShardId] = []  #: every start of an engine, in order

    @property
    def id(self) -> NodeId:
        return self.inventory.node

    def apply(self, command: Command) -> Rejection | ShardReport | None:
        """Do as told; return what to report, None if nothing changed."""
        if command.epoch < self.epoch:
            return self._refuse(command, "stale_epoch", f"knows epoch {self.epoch}")
        self.epoch = command.epoch
        if isinstance(command, StartShard):
            return self._start(command)
        known = self.shards.get(command.shard)
        if known is None:
            return None
        if isinstance(command, AdaptShard):
            return self._adapt(known, command)
        if isinstance(command, DrainShard):
            if known.shard.state is not ShardState.READY:
                return None
            return self.enter(command.shard, ShardState.DRAINING)
        if isinstance(command, SleepShard):
            if known.shard.state is ShardState.SLEEPING:
                return None
            return self.enter(command.shard, ShardState.SLEEPING)
        if isinstance(command, WakeShard):
            return self._wake(command)
        return self.enter(command.shard, ShardState.STOPPING)

    def enter(
        self,
        shard: ShardId,
        state: ShardState,
        *,
        failure: Failure | None = None,
        restarts: int | None = None,
    ) -> ShardReport:
        """Put a shard into a state; return the report of it."""
        report = self.shards[shard]
        began = state is ShardState.STARTING
        if began:
            self.starts.append(shard)
        changed = replace(
            report.shard,
            state=state,
            failure=failure or report.shard.failure,
            incarnation=report.shard.incarnation + began,
            restarts=report.shard.restarts if restarts is None else restarts,
        )
        url = f"http://{self.inventory.data_address}:{report.spec.ports[0]}"
        wanted = report.spec.adapters if state is ShardState.READY else ()
        report = replace(
            report,
            shard=changed,
            adapters=tuple(AdapterReport(name=item.name) for item in wanted),
            epoch=self.epoch,
            url=url if report.spec.rank == 0 else None,
            credential=Secret(f"key-of-{shard}"),
        )
        if state is ShardState.STOPPED:
            del self.shards[shard]
        else:
            self.shards[shard] = report
        return report

    def registration(self, session: SessionId) -> Registration:
        return Registration(
            session=session,
            inventory=self.inventory,
            epoch=self.epoch,
            cluster_id=self.cluster_id,
            shards=tuple(self.shards.values()),
        )

    def _start(self, command: StartShard) -> Rejection | ShardReport | None:
        spec = command.spec
        if spec.id in self.shards:
            return None
        for other in self.shards.values():
            if other.shard.state is ShardState.SLEEPING:
                continue
            if twice := set(other.spec.devices) & set(spec.devices):
                return self._refuse(
                    command, "device_busy", f"{sorted(twice)} belong to {other.shard.id}"
                )
            if set(other.spec.ports) & set(spec.ports):
                return self._refuse(command, "port_in_use", f"belongs to {other.shard.id}")
        report = ShardReport(shard=_assigned(self.id, spec), spec=spec, epoch=command.epoch)
        self.shards[spec.id] = report
        return report

    def _adapt(self, known: ShardReport, command: AdaptShard) -> ShardReport | None:
        if known.spec.adapters == command.adapters:
            return None
        report = replace(
            known,
            spec=replace(known.spec, adapters=command.adapters),
            adapters=tuple(AdapterReport(name=item.name) for item in command.adapters),
            epoch=self.epoch,
        )
        self.shards[command.shard] = report
        return report

    def _wake(self, command: WakeShard) -> Rejection | ShardReport | None:
        own = self.shards[command.shard]
        if own.shard.state is not ShardState.SLEEPING:
            return None
        for other in self.shards.values():
            is_awake = other.shard.state is not ShardState.SLEEPING
            if is_awake and set(other.spec.devices) & set(own.spec.devices):
                return self._refuse(command, "device_busy", f"{other.shard.id} has it")
        return self.enter(command.shard, ShardState.READY)

    def _refuse(self, command: Command, code: str, message: str) -> Rejection:
        shard = command.spec.id if isinstance(command, StartShard) else command.shard
        rejection = Rejection(node=self.id, shard=shard, code=code, message=message)
        self.rejections.append(rejection)
        return rejection


def _assigned(node: NodeId, spec: ShardSpec) -> Shard:
    return Shard(
        id=spec.id,
        replica=spec.replica,
        node=node,
        rank=spec.rank,
        state=ShardState.ASSIGNED,
        devices=spec.devices,
        ports=spec.ports,
    )


class MemoryDispatcher:
    """A `Dispatcher` over `MemoryNode`s; the test plays the engines."""

    name = "memory"

    def __init__(self) -> None:
        self.nodes: dict[NodeId, MemoryNode] = {}
        self.sent: list[tuple[NodeId, Command]] = []  #: every command that a node has taken
        self._reports: ReportSink | None = None
        self._sessions: dict[NodeId, SessionId] = {}
        self._counter = itertools.count(1)

    def attach(self, reports: ReportSink) -> None:
        """Pass on to `reports` what nodes say, without a task."""
        self._reports = reports

    async def run(self, reports: ReportSink, *, task_status: TaskStatus[str]) -> None:
        self.attach(reports)
        task_status.started("memory")
        await anyio.sleep_forever()

    async def dispatch(self, node: NodeId, commands: Sequence[Command]) -> None:
        if node not in self._sessions:
            raise NodeUnreachable(f"{node} has no session")
        for command in commands:
            self.sent.append((node, command))
            answer = self.nodes[node].apply(command)
            if isinstance(answer, Rejection):
                self.reports.rejected(answer)
            elif answer is not None:
                self._report(node, answer)

    @property
    def reports(self) -> ReportSink:
        assert self._reports is not None, "neither run nor attached"
        return self._reports

    def join(self, inventory: NodeInventory) -> MemoryNode:
        """Add a node, or a new session of a known one, and register it."""
        node = self.nodes.setdefault(inventory.node, MemoryNode(inventory))
        node.inventory = inventory
        self.reconnect(inventory.node)
        return node

    def reconnect(self, node: NodeId) -> None:
        """Begin a session: the node reports all that it has."""
        boot = self.nodes[node].inventory.boot_id
        session = self._sessions[node] = SessionId(f"{boot}/{next(self._counter)}")
        self.reports.registered(self.nodes[node].registration(session))

    def cut(self, node: NodeId) -> None:
        """End the node's session; what it runs goes on."""
        self.reports.disconnected(node, self._sessions.pop(node))

    def is_connected(self, node: NodeId) -> bool:
        return node in self._sessions

    def beat(self, loads: Sequence[tuple[ShardId, EngineLoad]] = ()) -> None:
        """Let every connected node send a heartbeat."""
        for node, session in self._sessions.items():
            beat = Heartbeat(session=session, sequence=next(self._counter), loads=tuple(loads))
            self.reports.heartbeat(node, beat)

    def enter(
        self,
        shard: ShardId,
        *states: ShardState,
        failure: Failure | None = None,
        restarts: int | None = None,
    ) -> None:
        """Let a shard go through states, each reported if its node is connected."""
        node = next(item for item in self.nodes.values() if shard in item.shards)
        for state in states:
            self._report(node.id, node.enter(shard, state, failure=failure, restarts=restarts))

    def settle(self) -> None:
        """Let every engine get where it is going: starting ones ready, stopping ones stopped."""
        for node in self.nodes.values():
            for shard, report in list(node.shards.items()):
                match report.shard.state:
                    case ShardState.ASSIGNED:
                        self.enter(shard, ShardState.STARTING, ShardState.READY)
                    case ShardState.STARTING:
                        self.enter(shard, ShardState.READY)
                    case ShardState.STOPPING:
                        self.enter(shard, ShardState.STOPPED)
                    case _:
                        pass

    def _report(self, node: NodeId, report: ShardReport) -> None:
        if (session := self._sessions.get(node)) is not None:
            self.reports.shard_reported(node, session, report)
