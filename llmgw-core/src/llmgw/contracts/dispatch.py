"""How commands reach a node, and the optional abilities of whoever carries them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.contracts.sinks import ReportSink
from llmgw.contracts.trust import NodeTrust
from llmgw.domain.commands import Command
from llmgw.domain.ids import NodeId
from llmgw.domain.replicas import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherContext:
    """What a dispatcher may use of the server that it runs in."""

    agent_listen: str  #: `HOST:PORT` (IPv6 in brackets, port 0 allowed) or `unix:/PATH`
    state_dir: Path
    trust: NodeTrust
    clock: Clock
    node_count_hint: int = 0  #: known nodes, for the heartbeat interval: max(5 s, nodes / 200)
    sections: Mapping[str, object] = field(default_factory=dict)  #: plugins' settings by name


class Dispatcher(Protocol):
    """Delivers commands to nodes and reports to the control plane, in one process with it."""

    @property
    def name(self) -> str: ...

    async def run(self, reports: ReportSink, *, task_status: TaskStatus[str]) -> None:
        """Serve until cancelled, passing everything that nodes say to `reports`.

        Calls `task_status.started` with the bound address once nodes can connect. Raises
        ConfigError naming the address if it cannot be bound.
        """
        ...

    async def dispatch(self, node: NodeId, commands: Sequence[Command]) -> None:
        """Hand commands over in order; returning means queued on a live session, not done.

        Raises NodeUnreachable if there is none. Safe to repeat: the node applies each command
        as an edit of a set.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """One log of a node, as the node itself lists it."""

    name: str  #: `agent`, or a shard id
    description: str
    lines: int  #: in memory


@runtime_checkable
class LogReader(Protocol):
    """The dispatcher can fetch logs from nodes. 10 s without an answer raise NodeUnreachable."""

    async def log_sources(self, node: NodeId) -> tuple[LogSource, ...]: ...

    def read_log(
        self, node: NodeId, *, source: str, lines: int, follow: bool
    ) -> AsyncIterator[str]:
        """Yield the last `lines` lines, oldest first, then new ones for ever if `follow`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsEntry:
    """Weights on a node."""

    ref: str
    size_bytes: int
    state: str  #: `ready`, `downloading`, `partial`
    used_by: tuple[str, ...]  #: shard ids
    total_bytes: int | None = None  #: when whole; None: not known, or `size_bytes`


Heard = Callable[[Progress], None]
"""Told how far a node's long work is, every few seconds. Must not wait."""


@runtime_checkable
class WeightManager(Protocol):
    """The dispatcher can list, fetch and remove weights on nodes."""

    async def list_weights(self, node: NodeId) -> tuple[WeightsEntry, ...]: ...

    async def pull_weights(self, node: NodeId, ref: str, *, heard: Heard) -> None: ...

    async def remove_weights(self, node: NodeId, ref: str) -> None:
        """Remove them; raises PermanentError naming the shards that use them, if any do."""
        ...


@runtime_checkable
class EngineInstaller(Protocol):
    """The dispatcher can install and remove engines on nodes."""

    async def install_engine(
        self, node: NodeId, engine: str, version: str, *, heard: Heard
    ) -> None: ...

    async def remove_engine(self, node: NodeId, engine: str, version: str) -> None: ...
