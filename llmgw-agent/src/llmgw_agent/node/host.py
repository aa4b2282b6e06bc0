"""What one shard's hands need of the node that they work on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import anyio

from llmgw.clock import Clock
from llmgw.contracts.engine import EngineAdapter, EngineHome
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import NodeId, ShardId
from llmgw.domain.nodes import Device
from llmgw.domain.replicas import Failure
from llmgw_agent.node.processes import (
    Listening,
    ProcessEntry,
    Recent,
    listening_sockets,
    process_table,
)

_THREADS = 4
_TABLE_AGE_S = 2.5
_SOCKETS_AGE_S = 0.25

Report = Callable[[float, float | None], None]  #: (done, in all or None)


class StepFailed(Exception):
    """A step toward a running engine cannot be done; carries why, for a person."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class EngineHomes(Protocol):
    """Where engines are on this node."""

    async def resolve(self, spec: ShardSpec, report: Report) -> EngineHome:
        """Return where the engine is, installing it if need be. Raises StepFailed."""
        ...


class Weights(Protocol):
    """The weights of this node."""

    async def ensure(self, ref: str, *, report: Report) -> Path:
        """Return the verified file or folder, fetched if need be. Raises StepFailed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One node, as seen by whoever runs a shard on it."""

    node: NodeId
    agent_uid: str
    boot_id: str
    address: str  #: IP that engines bind and routers reach
    clock: Clock
    adapters: Mapping[str, EngineAdapter]
    homes: EngineHomes
    weights: Weights
    devices: Callable[[], Awaitable[tuple[Device, ...]]]  #: read afresh
    lock_folder: Path  #: host-wide, one lock file per device
    environment: Mapping[str, str]  #: the agent's own
    threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(_THREADS))
    """For reads of the kernel's and of shards' small files, which every shard does at the same time when
    an agent starts. With forty threads the event loop waited for its turn at every system call."""
    table: Recent[dict[int, ProcessEntry]] = field(
        default_factory=lambda: Recent(process_table, max_age_s=_TABLE_AGE_S)
    )
    sockets: Recent[Listening] = field(
        default_factory=lambda: Recent(listening_sockets, max_age_s=_SOCKETS_AGE_S)
    )
    guarded: bool = True  #: only this machine or routers reach the engines
    cgroups: Path | None = None  #: a cgroup that was delegated to the agent

    def cookie(self, shard: ShardId) -> str:
        return f"{self.agent_uid}/{shard}"
