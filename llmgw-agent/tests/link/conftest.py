"""Both halves of the stream in one process, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import anyio.abc
import pytest

from llmgw.clock import SystemClock
from llmgw.contracts.dispatch import DispatcherContext
from llmgw.domain.commands import Command, ShardSpec, StartShard
from llmgw.domain.ids import (
    Epoch,
    NodeId,
    SessionId,
    ShardId,
)
from llmgw.domain.nodes import NodeInventory
from llmgw.domain.replicas import Shard, ShardState
from llmgw.domain.reports import Heartbeat, Registration, Rejection, ShardReport
from llmgw.testing import values
from llmgw.testing.trust import InMemoryTrust
from llmgw_agent.hub.dispatcher import HubDispatcher
from llmgw_agent.node.identity import KeptIdentity, NodeCredentials, TokenSource
from llmgw_agent.node.link import Abilities, Link
from llmgw_agent.node.minting import Mint
from llmgw_agent.node.minting.work import answer
from llmgw_agent.node.outbox import Allegiance, Outbox
from llmgw_agent.wire.addresses import ServerAddress, parse_address
from llmgw_agent.wire.versions import own_version

BEAT_S = 0.1


class Changing:
    """Something that a test waits for, by asking again whenever it may have changed."""

    def __init__(self) -> None:
        self._changed = anyio.Event()

    def changed(self) -> None:
        self._changed.set()

    async def until(self, true: Callable[[], object], limit_s: float = 8.0) -> None:
        with anyio.fail_after(limit_s):
            while not true():
                self._changed = anyio.Event()
                await self._changed.wait()


class Reports(Changing):
    """A ReportSink that remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.registrations: list[Registration] = []
        self.beats: list[tuple[NodeId, Heartbeat]] = []
        self.shards: list[tuple[NodeId, SessionId, ShardReport]] = []
        self.rejections: list[Rejection] = []
        self.gone: list[tuple[NodeId, SessionId]] = []

    def registered(self, registration: Registration) -> None:
        self.registrations.append(registration)
        self.changed()

    def heartbeat(self, node: NodeId, beat: Heartbeat) -> None:
        self.beats.append((node, beat))
        self.changed()

    def shard_reported(self, node: NodeId, session: SessionId, report: ShardReport) -> None:
        self.shards.append((node, session, report))
        self.changed()

    def rejected(self, rejection: Rejection) -> None:
        self.rejections.append(rejection)
        self.changed()

    def disconnected(self, node: NodeId, session: SessionId) -> None:
        self.gone.append((node, session))
        self.changed()


class Obedient(Changing):
    """Takes every command, except those for shards that it was told to refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.applied: list[Command] = []
        self.refusals: dict[ShardId, Rejection] = {}

    async def apply(self, command: Command) -> Rejection | None:
        shard = command.spec.id if isinstance(command, StartShard) else command.shard
        self.applied.append(command)
        self.changed()
        return self.refusals.get(shard)


class Cluster:
    """Which cluster a node belongs to."""

    def __init__(self, cluster_id: str | None = None) -> None:
        self.cluster_id = cluster_id

    def foreign_cluster(self, cluster_id: str) -> str | None:
        return None if self.cluster_id in (None, cluster_id) else f"belongs to {self.cluster_id}"

    async def join(self, cluster_id: str) -> None:
        self.cluster_id = self.cluster_id or cluster_id


@dataclass
class Agent:
    """The node's half: outbox and link."""

    inventory: NodeInventory
    servers: tuple[ServerAddress, ...]
    folder: Path
    tokens: TokenSource = field(default_factory=TokenSource)
    abilities: Abilities = field(default_factory=Abilities)
    cluster: Cluster = field(default_factory=Cluster)
    commands: Obedient = field(default_factory=Obedient)

    def __post_init__(self) -> None:
        clock = SystemClock()
        self.outbox = Outbox(
            inventory=lambda: self.inventory,
            allegiance=lambda: Allegiance(epoch=Epoch(0), cluster_id=self.cluster.cluster_id),
        )
        self.kept = KeptIdentity(self.folder / "identity.json", Mint(answer))
        self.credentials = NodeCredentials(
            node=self.inventory.node, kept=self.kept, tokens=self.tokens, clock=clock
        )
        self.link = Link(
            servers=self.servers,
            credentials=self.credentials,
            outbox=self.outbox,
            commands=self.commands,
            membership=self.cluster,
            abilities=self.abilities,
            clock=clock,
        )

    def update(self, **changes: object) -> None:
        self.inventory = replace(self.inventory, **changes)  # type: ignore[arg-type]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Agent]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(lambda *, task_status: self.link.run(task_status=task_status))
            yield self
            tasks.cancel_scope.cancel()


@dataclass
class Server:
    """The server's half: a dispatcher, and what it hears."""

    trust: InMemoryTrust
    listen: str
    folder: Path
    heartbeat_s: float = BEAT_S
    version: str | None = None
    answer_limit_s: float = 10.0

    def __post_init__(self) -> None:
        self.reports = Reports()
        self.dispatcher = HubDispatcher(
            DispatcherContext(
                agent_listen=self.listen,
                state_dir=self.folder,
                trust=self.trust,
                clock=SystemClock(),
            ),
            heartbeat_s=self.heartbeat_s,
            answer_limit_s=self.answer_limit_s,
            server_version=self.version,
        )
        self.address = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        async with anyio.create_task_group() as tasks:
            self._scope = tasks.cancel_scope
            self.address = await tasks.start(self._run)
            with anyio.CancelScope(shield=True):
                yield self
            tasks.cancel_scope.cancel()

    def stop(self) -> None:
        """Stop serving, as SIGTERM would; the test goes on."""
        self._scope.cancel()

    async def _run(self, *, task_status: anyio.abc.TaskStatus[str]) -> None:
        await self.dispatcher.run(self.reports, task_status=task_status)


class Workshop:
    """Makes servers and agents for one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trust = InMemoryTrust()
        self._agents = 0

    def server(
        self,
        listen: str = "unix",
        *,
        heartbeat_s: float = BEAT_S,
        version: str | None = None,
        answer_limit_s: float = 10.0,
    ) -> Server:
        """Return a server; listen: `unix` for a socket file of this test, or an address."""
        return Server(
            trust=self.trust,
            listen=f"unix:{self.folder}/agents.sock" if listen == "unix" else listen,
            folder=self.folder,
            heartbeat_s=heartbeat_s,
            version=version,
            answer_limit_s=answer_limit_s,
        )

    def agent(
        self,
        *servers: Server | str,
        node: str = "gpu-01",
        uid: str = "",
        token: str | None = None,
        version: str | None = None,
        folder: Path | None = None,
        abilities: Abilities | None = None,
        cluster_id: str | None = None,
    ) -> Agent:
        self._agents += 1
        folder = folder or self.folder / f"agent-{self._agents}"
        folder.mkdir(exist_ok=True)
        addresses = [item if isinstance(item, str) else item.address for item in servers]
        return Agent(
            inventory=NodeInventory(
                node=NodeId(node),
                agent_uid=uid or f"uid-{self._agents}",
                boot_id="boot",
                machine_id="machine",
                agent_version=version or own_version(),
                hostname=node,
                data_address="127.0.0.1",
                capabilities=frozenset({"logs"}),
            ),
            servers=tuple(parse_address(address) for address in addresses),
            folder=folder,
            tokens=TokenSource(given=token),
            abilities=abilities or Abilities(),
            cluster=Cluster(cluster_id),
        )

    def spec(self, shard: str = "m-1-1.0", **changes: object) -> ShardSpec:
        return values.shard(shard, **changes)

    def report(
        self, node: str = "gpu-01", state: ShardState = ShardState.READY, shard: str = "m-1-1.0"
    ) -> ShardReport:
        spec = self.spec(shard)
        return ShardReport(
            shard=Shard(id=spec.id, replica=spec.replica, node=NodeId(node), rank=0, state=state),
            spec=spec,
            epoch=Epoch(1),
        )


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


@pytest.fixture
def free_port() -> int:
    """A port that is free now, for a server that must come back at the same address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
