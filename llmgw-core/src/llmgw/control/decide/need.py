"""What one replica of a profile asks of the nodes that take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.control.decide.accounts import Shape
from llmgw.control.decide.fit import (
    MAIN_MEMORY,
    Demand,
    demand,
    learned_demand,
    learned_key,
)
from llmgw.control.decide.snapshot import Avoidance, ClusterSnapshot, Engine
from llmgw.domain.catalog import Model, Profile
from llmgw.domain.ids import NodeId
from llmgw.domain.weights import WeightFacts

#: An agent that knows of roles announces it.
ROLES = "roles"
#: Of `fabric:`; devices of one node, rather than nodes, must share it.
DEVICE_FABRIC = "nvlink"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One shard's requirements, and how many such shards on different nodes make a replica."""

    model: Model
    profile: Profile
    hash: str
    engine: Engine | None  #: None: no plugin supplies it
    shards: int
    devices: int  #: per shard
    ports: int  #: per shard
    facts: WeightFacts | None
    learned: Mapping[str, float]
    avoided: Mapping[NodeId, Avoidance]
    demands: dict[str, Demand | None] = field(default_factory=dict, compare=False, repr=False)
    """By kind, computed once: it is asked for each device that is looked at."""
    fitting: dict[Shape, bool] = field(default_factory=dict, compare=False, repr=False)
    """Likewise whether devices of a shape are large enough, and of the right kind."""

    @property
    def vendors(self) -> frozenset[str]:
        """Whose accelerators the engine can use."""
        return self.engine.traits.devices if self.engine else frozenset()

    @property
    def one_island(self) -> bool:
        """Its devices must be joined by fast links."""
        return self.profile.fabric == DEVICE_FABRIC and self.devices > 1

    @property
    def node_fabric(self) -> str | None:
        """Fabric label that a node must have. A gang on any common one asks for none by name."""
        return None if self.profile.fabric in (None, DEVICE_FABRIC) else self.profile.fabric

    @property
    def refs(self) -> tuple[str, ...]:
        """All weights that a shard needs on its node."""
        return (self.profile.weights, *(item.weights for item in self.profile.adapters))

    def demand_on(self, kind: str) -> Demand | None:
        """Return the memory that each device of this kind must have free; None: not known."""
        if kind not in self.demands:
            learned = self.learned.get(learned_key(self.profile, kind)) if self.learned else None
            self.demands[kind] = demand(self.profile, facts=self.facts, learned_mib=learned)
        return self.demands[kind]

    @property
    def ram_mib(self) -> float | None:
        """Main memory that a shard takes, as configured or seen before; None: not counted."""
        if self.profile.ram_gib is not None:
            return self.profile.ram_gib * 1024
        if self.devices or not self.learned:
            return None
        if MAIN_MEMORY not in self.demands:
            seen = self.learned.get(learned_key(self.profile, MAIN_MEMORY))
            self.demands[MAIN_MEMORY] = None if seen is None else learned_demand(seen)
        found = self.demands[MAIN_MEMORY]
        return found.memory_mib if found else None

    def matches(self, shape: Shape) -> bool:
        """Return whether devices of this shape are of the kind that `devices.match` asks for."""
        _, kind, _, labels = shape
        for key, wanted in self.profile.devices.match.items():
            if key == "kind":
                if wanted.lower() not in kind.lower():
                    return False
            elif (key, wanted) not in labels:
                return False
        return True

    def fits(self, shape: Shape) -> bool:
        """Return whether sound devices of this shape could take a shard, were they free."""
        known = self.fitting.get(shape)
        if known is None:
            known = self.fitting[shape] = self._fits(shape)
        return known

    def _fits(self, shape: Shape) -> bool:
        vendor, kind, memory_mib, _ = shape
        if vendor not in self.vendors or not self.matches(shape):
            return False
        demand = self.demand_on(kind)
        if demand is None:
            return False
        if memory_mib is None:
            return self.profile.devices.memory_gib is not None
        return memory_mib >= demand.memory_mib


def need_of(snapshot: ClusterSnapshot, model: Model, profile: Profile) -> Need:
    """Return what one replica of the profile asks for."""
    engine = snapshot.engines.get(profile.engine)
    hash_ = snapshot.hashes[model.name][profile.name]
    return Need(
        model=model,
        profile=profile,
        hash=hash_,
        engine=engine,
        shards=profile.nodes,
        devices=profile.devices.count // profile.nodes,
        ports=engine.traits.ports_per_shard if engine else 1,
        facts=snapshot.facts.get(profile.weights),
        learned=snapshot.learned,
        avoided={
            node: avoidance
            for (hashed, node), avoidance in snapshot.avoided.items()
            if hashed == hash_ and avoidance.until > snapshot.now
        },
    )
