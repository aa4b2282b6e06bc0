"""What comes up from a node. Reports are the truth about what runs."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import Epoch, ModelName, NodeId, SessionId, ShardId
from llmgw.domain.loads import EngineLoad, MemoryReport
from llmgw.domain.nodes import Device, NodeInventory
from llmgw.domain.replicas import Shard
from llmgw.domain.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterReport:
    """How one LoRA adapter of a shard is."""

    name: ModelName
    problem: str = ""  #: why it cannot be used now; "": it is loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """The whole present state of one assigned shard. Newest wins; repeating one is harmless."""

    shard: Shard
    spec: ShardSpec  #: as persisted on the node, so that a server with no memory can adopt it
    epoch: Epoch  #: of the newest command applied to this shard
    url: str | None = None  #: of the engine's HTTP port, rank 0 only, from STARTING on
    credential: Secret | None = None  #: the engine's key, made by the agent
    memory: MemoryReport | None = None  #: what this incarnation said that it took, once ready
    adapters: tuple[AdapterReport, ...] = ()  #: of `spec.adapters`, those that were tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """First report of a session: everything, so that nothing has to be remembered elsewhere."""

    session: SessionId
    inventory: NodeInventory
    epoch: Epoch  #: highest that the agent has seen; older commands are refused
    cluster_id: str | None  #: of the store that the agent belongs to; None: never joined
    shards: tuple[ShardReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Small, frequent, answered."""

    session: SessionId
    sequence: int
    devices: tuple[Device, ...] = ()  #: present readings; () means unchanged
    loads: tuple[tuple[ShardId, EngineLoad], ...] = ()
    ram_available_mib: int | None = None
    disk_free_mib: int | None = None
    loop_lag_ms: float = 0.0  #: the agent's own worst event-loop stall since the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """The node refused a command, for a reason that time alone may not change."""

    node: NodeId
    shard: ShardId
    code: str  #: `stale_epoch`, `device_busy`, `unknown_engine`, `bad_option`, `unsupported`, …
    message: str
