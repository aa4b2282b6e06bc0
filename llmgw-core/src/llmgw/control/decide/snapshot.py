"""All that a decision may look at, frozen at one moment, `now` included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw.contracts.engine import EngineTraits
from llmgw.domain.catalog import Model, Profile
from llmgw.domain.commands import ShardSpec
from llmgw.domain.endpoints import RouterUsage
from llmgw.domain.ids import (
    Epoch,
    ModelName,
    NodeId,
    ProfileName,
    ReplicaId,
    SessionId,
    ShardId,
)
from llmgw.domain.loads import EngineLoad
from llmgw.domain.nodes import NodeInventory, NodeState
from llmgw.domain.plans import Refusal
from llmgw.domain.replicas import Failure, Replica
from llmgw.domain.reports import ShardReport
from llmgw.domain.weights import WeightFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """What is known of one node."""

    id: NodeId
    state: NodeState
    since: float  #: when `state` was entered
    session: SessionId | None = None  #: None: not connected
    session_since: float = 0.0
    inventory: NodeInventory | None = None  #: None: known from the store, not back yet
    cordoned: bool = False
    draining: bool = False  #: an operator wants it empty; implies `cordoned`
    drain_ends: float = 0.0  #: when what is still there while draining is stopped
    because: str = ""  #: the operator's words for cordon, drain or fence

    @property
    def machine(self) -> str:
        """What shares ports and devices; agents on one host have the same."""
        return (self.inventory.machine_id if self.inventory else "") or str(self.id)


_FIRST = Epoch(1)


class Intent(StrEnum):
    """What this leadership wants of a replica that it has given an order about."""

    RUN = "run"
    SLEEP = "sleep"
    DRAIN = "drain"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The newest order about a replica, repeated until its nodes report agreement."""

    replica: ReplicaId
    model: ModelName
    intent: Intent
    shards: tuple[tuple[NodeId, ShardSpec], ...]
    since: float  #: when this intent began
    because: str
    grace_s: float | None = None
    victim_for: ModelName | None = None  #: stopped to make room for this model


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    """One replica: its state, where its shards are, and what was ordered."""

    replica: Replica
    shards: tuple[tuple[NodeId, ShardSpec], ...]  #: by rank
    reports: Mapping[ShardId, ShardReport] = field(default_factory=dict)
    order: Order | None = None  #: None: adopted as it was found

    @property
    def id(self) -> ReplicaId:
        return self.replica.id

    @property
    def spec(self) -> ShardSpec:
        """Of its first shard; what all shards have in common can be read here."""
        return self.shards[0][1]

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(node for node, _ in self.shards)

    @property
    def leaving(self) -> bool:
        """It has been told to drain or stop."""
        return self.order is not None and self.order.intent in (Intent.DRAIN, Intent.STOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoidance:
    """A profile failed on a node: keep that version of it off until a time."""

    until: float
    count: int  #: how often so far; the next one lasts longer
    failure: Failure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setback:
    """A model could not be placed: not looked at again before `until`, unless the fleet changes."""

    until: float
    count: int
    revision: int  #: of the fleet and catalog, when it was tried
    refusal: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Somebody waits for a model."""

    since: float
    newest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings that decisions depend on, in seconds where no unit is named."""

    port_range: tuple[int, int] = (20000, 29999)
    base_backoff: float = 5.0
    max_backoff: float = 300.0
    crash_limit: int = 5
    drain_limit: float = 300.0
    resend_after: float = 5.0  #: an order that its node has not reported is sent again
    withdraw_for: float = 2.0
    """At least this long between un-routing and stopping: proxies that are fed by sinks, and
    routers of followers that cannot reach the leader, do not say what they have in force."""
    acknowledge_within: float = 5.0  #: a router that has not un-routed it by then is not waited for
    surge: int = 1  #: replicas of a new version started at a time, besides the old ones
    scale_up_after: float = 15.0  #: load above target for this long
    scale_down_after: float = 300.0  #: load below target for this long
    minimum_residence: float = 30.0  #: a model that was woken stays at least this long
    sleep_within: float = 180.0  #: an engine that is not asleep by then is stopped
    sleep_limit: float = 86_400.0  #: asleep for longer, it is stopped: its memory is worth more
    fair_wait: float = 60.0  #: a waiting model may end a busy one of equal rank after this long
    mgmt_interface: str | None = None  #: whose addresses gangs meet at, but for those of fabrics
    agent_version: str = ""  #: newest `MAJOR.MINOR` accepted; empty: any


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What decisions know of an engine kind."""

    traits: EngineTraits
    installable: frozenset[str] = frozenset()  #: versions that any node can install by itself
    sleep_levels: Callable[[ShardSpec], frozenset[int]] = lambda _: frozenset()
    """At which levels an engine with this spec can sleep; pure."""
    adapter_model: Callable[[ShardSpec, str], str] = lambda _, name: name
    """What a request says to get an adapter of this name; pure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How long a model's load has called for another number of replicas."""

    above_since: float | None = None
    below_since: float | None = None


NO_PRESSURE = Pressure()


@dataclass(slots=True)
class _Sorted:
    """What a snapshot lists, by name; made when first asked for, which most are never."""

    models: Mapping[ModelName, Model] | None = None
    replicas: Mapping[ModelName, Sequence[ReplicaRecord]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The fleet and what is wanted of it. Same snapshot, same decision."""

    now: float
    term: int = 1
    epoch: Epoch = _FIRST
    leading: bool = True
    settled: bool = True
    models: tuple[Model, ...] = ()
    hashes: Mapping[ModelName, Mapping[ProfileName, str]] = field(default_factory=dict)
    """`spec_hash` of each profile of each model, computed once per catalog."""
    nodes: Mapping[NodeId, NodeRecord] = field(default_factory=dict)
    replicas: tuple[ReplicaRecord, ...] = ()
    engines: Mapping[str, Engine] = field(default_factory=dict)
    usage: RouterUsage = field(default_factory=RouterUsage)
    withdrawn: frozenset[ReplicaId] = frozenset()
    """Those that drain by order and get no new request, as every router has confirmed."""
    usage_known: bool = False  #: False: no router reports, so nothing is known to be idle
    loads: Mapping[ShardId, EngineLoad] = field(default_factory=dict)
    wanted: Mapping[ModelName, Wanted] = field(default_factory=dict)
    pressure: Mapping[ModelName, Pressure] = field(default_factory=dict)
    avoided: Mapping[tuple[str, NodeId], Avoidance] = field(default_factory=dict)
    """By spec hash and node."""
    setbacks: Mapping[ModelName, Setback] = field(default_factory=dict)
    blocked_ports: frozenset[tuple[str, int]] = frozenset()  #: (machine, port) taken by strangers
    facts: Mapping[str, WeightFacts] = field(default_factory=dict)  #: by weights ref
    learned: Mapping[str, float] = field(default_factory=dict)
    """MiB per device that a spec really took, by `fit.learned_key`."""
    next_number: int = 1
    revision: int = 0  #: changes with anything that placement depends on
    limits: Limits = field(default_factory=Limits)
    _sorted: _Sorted = field(default_factory=_Sorted, init=False, repr=False, compare=False)

    @property
    def by_model(self) -> Mapping[ModelName, Sequence[ReplicaRecord]]:
        """The replicas of each model that has any, by id."""
        if self._sorted.replicas is None:
            found: dict[ModelName, list[ReplicaRecord]] = {}
            for record in self.replicas:
                found.setdefault(record.replica.model, []).append(record)
            self._sorted.replicas = found
        return self._sorted.replicas

    def replicas_of(self, name: ModelName) -> Sequence[ReplicaRecord]:
        """Return the replicas of one model, by id."""
        return self.by_model.get(name, ())

    def model(self, name: ModelName) -> Model | None:
        """Return the catalog entry of this canonical name."""
        if self._sorted.models is None:
            self._sorted.models = {item.name: item for item in self.models}
        return self._sorted.models.get(name)

    def profile_of(self, model: Model, record: ReplicaRecord) -> Profile | None:
        """Return the profile that the replica runs as it is written now; None if it has changed."""
        profile = model.profile(record.replica.profile)
        if profile is None or self.hashes[model.name][profile.name] != record.replica.spec_hash:
            return None
        return profile
