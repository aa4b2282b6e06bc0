"""What a placement policy is asked, and what it may answer.

Core has already found the candidates feasible and keeps the accounts, so that no policy can
book a device twice. A policy only ranks, or vetoes with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from llmgw.domain.catalog import Model, Profile
from llmgw.domain.ids import DeviceId, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """One node's part in a candidate."""

    node: NodeId
    devices: tuple[DeviceId, ...]  #: those that the replica would get
    free_devices: int  #: free ones that fit this profile, those offered included
    total_devices: int
    free_memory_mib: int | None  #: after placement, over the offered devices; None: unknown
    free_ram_mib: int | None
    same_model: int  #: replicas of this model already on the node
    replicas: int  #: replicas of any model on the node
    has_weights: bool
    has_engine: bool
    islands: frozenset[str]  #: NVLink islands of the offered devices
    fabric: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One feasible way to place one replica: one offer per node, rank order."""

    offers: tuple[NodeOffer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What is to be placed."""

    model: Model
    profile: Profile


@dataclass(frozen=True, slots=True)
class Score:
    """Higher is better. Scores are compared within one request only; core breaks ties by node id."""

    value: float
    because: str  #: a few words, shown by `explain`


@dataclass(frozen=True, slots=True)
class Veto:
    """Not here. code is snake_case; both appear in `explain`. Neither may be empty."""

    code: str
    sentence: str


Verdict = Score | Veto


class PlacementPolicy(Protocol):
    """Ranks feasible candidates. Pure: same arguments, same answer; no clock, no I/O."""

    @property
    def name(self) -> str:
        """What `control.placement_policy` says."""
        ...

    def rank(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> Sequence[Verdict]:
        """Return one verdict per candidate, in the same order. candidates is never empty."""
        ...
