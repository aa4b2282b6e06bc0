"""Why not, and what to do next: the reconciler's answer as a value.

Why-not is a value, not a string: the page, `llmgw ctl explain`, the 503 body and the log
all print the same `Refusal` in the same words.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.domain.commands import LoraAdapter, ShardSpec
from llmgw.domain.ids import ModelName, NodeId, ProfileName, ReplicaId


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One coded reason, with those that it was made of below it.

    code is stable snake_case, explained in the operations handbook. need and have are short
    texts with units. An empty code or sentence is a bug.
    """

    code: str
    sentence: str  #: e.g. `needs 2 devices with 40 GiB free, gpu-01 has 1`
    model: ModelName | None = None
    profile: ProfileName | None = None
    node: NodeId | None = None
    need: str = ""
    have: str = ""
    hint: str = ""  #: the cheapest way out
    parts: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReplica:
    """Order every shard of a new replica."""

    replica: ReplicaId
    model: ModelName
    profile: ProfileName
    shards: tuple[tuple[NodeId, ShardSpec], ...]
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReplica:
    """Take no new request; it stays until its requests have ended."""

    replica: ReplicaId
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplica:
    """End every shard and forget the assignment."""

    replica: ReplicaId
    because: str
    grace_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepReplica:
    """Give the device memory back, the process stays: waking costs seconds, not a load."""

    replica: ReplicaId
    because: str
    level: int  #: 1 keeps the weights in main memory, 2 drops them


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeReplica:
    """Take the device memory again and serve."""

    replica: ReplicaId
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptReplica:
    """Load these LoRA adapters, and no others, while it serves."""

    replica: ReplicaId
    adapters: tuple[LoraAdapter, ...]
    because: str


Action = StartReplica | DrainReplica | StopReplica | SleepReplica | WakeReplica | AdaptReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One step toward the catalog. Every action is safe to repeat."""

    actions: tuple[Action, ...] = ()
    unplaced: tuple[Refusal, ...] = ()  #: one tree per model that has fewer replicas than it should
    recheck_after_s: float | None = None  #: None: nothing changes by itself
