"""What goes down to a node: idempotent edits to the set of shards assigned to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.domain.ids import DeviceId, Epoch, ModelName, NodeId, ProfileName, ReplicaId, ShardId
from llmgw.domain.roles import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One shard of a replica, as the others reach it."""

    rank: int
    node: NodeId
    address: str  #: IP without brackets, on the fabric or the management network
    ports: tuple[int, ...]  #: in the order that the adapter asked for; the HTTP port first
    devices: int  #: how many the shard has


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapter:
    """A small addition to the weights, which requests ask for by its name."""

    name: ModelName
    weights: str  #: as a profile's


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """All that a node must know to run one shard, persisted there as it is."""

    id: ShardId
    replica: ReplicaId
    model: ModelName
    served_names: tuple[ModelName, ...]  #: canonical first
    profile: ProfileName
    spec_hash: str
    engine: str
    engine_version: str | None
    weights: str
    options: Mapping[str, object]
    devices: tuple[DeviceId, ...]
    rank: int
    ports: tuple[int, ...]  #: of this shard, the HTTP port first
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    peers: tuple[Peer, ...] = ()
    """Every shard of the replica by rank, this one included; a replica of one shard has them only
    where others must reach it too, as those of the other role do."""
    memory_mib: int | None = None  #: booked on each device
    command: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    pool: str = "default"
    priority: int = 0
    weight: float = 1.0
    max_inflight: int | None = None
    start_limit_s: float = 1800.0
    stop_grace_s: float | None = None
    role: Role | None = None  #: half of each request is its own; None: whole requests
    adapters: tuple[LoraAdapter, ...] = ()  #: the one part that changes while it runs

    @property
    def refs(self) -> frozenset[str]:
        """All weights that it needs on its node."""
        return frozenset((self.weights, *(item.weights for item in self.adapters)))

    @property
    def world_size(self) -> int:
        """How many shards the replica has; 1 where `peers` is empty."""
        return max(1, len(self.peers))


@dataclass(frozen=True, slots=True, kw_only=True)
class StartShard:
    """Add the shard to the node's assignments; a known id with the same spec changes nothing."""

    epoch: Epoch
    spec: ShardSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainShard:
    """The shard takes no new request; kept in the assignment and reported up."""

    epoch: Epoch
    shard: ShardId
    replica: ReplicaId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopShard:
    """Remove the shard from the assignments: terminate, wait, kill the tree, free its devices."""

    epoch: Epoch
    shard: ShardId
    replica: ReplicaId
    grace_s: float | None = None  #: None: the engine's own


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepShard:
    """The engine gives its device memory back and keeps its process; it must hold no request.

    Only for nodes that announce the capability `sleep`.
    """

    epoch: Epoch
    shard: ShardId
    replica: ReplicaId
    level: int  #: 1 keeps the weights in main memory, 2 drops them


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeShard:
    """The sleeping engine takes its device memory again and serves; a shard that serves goes on."""

    epoch: Epoch
    shard: ShardId
    replica: ReplicaId


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptShard:
    """The engine loads these adapters, and no others, while it serves.

    Only for nodes that announce the capability `adapters`.
    """

    epoch: Epoch
    shard: ShardId
    replica: ReplicaId
    adapters: tuple[LoraAdapter, ...]


Command = StartShard | DrainShard | StopShard | SleepShard | WakeShard | AdaptShard
