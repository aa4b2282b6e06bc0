"""Nodes, models, replicas and endpoints as they are now."""

from __future__ import annotations

from collections.abc import Mapping

from llmgw.adminapi.explain import RefusalReply
from llmgw.adminapi.reply import Reply


class LeaderReply(Reply):
    """Who plans for the cluster."""

    here: bool
    """Whether the server that answered leads."""
    leader: str | None = None
    epoch: int | None = None
    settled: bool | None = None
    """False while the fleet's reports are awaited after a start: nothing is planned yet."""


class RatesReply(Reply):
    """What the data plane has done in the last seconds, as this server's routers count."""

    requests_per_s: float
    failed_per_s: float
    """By engine or gateway; what clients did wrong or gave up is none."""
    output_tokens_per_s: float
    first_token_p50_s: float | None = None
    """Of the last minute; null: no stream has begun in it."""
    first_token_p99_s: float | None = None


class StatusReply(Reply):
    """The cluster in one glance."""

    version: str
    server: str
    cluster_id: str | None = None
    now: float
    leadership: LeaderReply | None = None
    """null: no control plane runs here."""
    nodes: Mapping[str, int] = {}
    """Count by state."""
    devices_total: int = 0
    devices_used: int = 0
    models: Mapping[str, int] = {}
    replicas: Mapping[str, int] = {}
    endpoints: int = 0
    in_flight: int = 0
    queued: int = 0
    rates: RatesReply | None = None
    """null: just started."""
    problems: tuple[str, ...] = ()
    """What needs a person, the most urgent first."""


class DeviceReply(Reply):
    """One accelerator."""

    id: str
    index: int
    kind: str
    vendor: str
    memory_mib: int | None = None
    memory_used_mib: int | None = None
    utilisation: float | None = None
    """0.0 to 1.0."""
    health: str
    health_reason: str = ""
    labels: Mapping[str, str] = {}
    """What its driver says besides: of NVIDIA's `driver`, `compute_capability`, `ecc` (on, off),
    `ecc_uncorrected` and `xid`, the last that was reported. What it refuses to say is left out."""
    pci_address: str | None = None
    island: str | None = None
    parent: str | None = None
    used_by: tuple[str, ...] = ()
    """Shards that hold it."""
    foreign_processes: int = 0


class NodeReply(Reply):
    """One node, in one line."""

    id: str
    state: str
    since_at: float | None = None
    last_seen_at: float | None = None
    connected: bool = False
    cordoned: bool = False
    draining: bool = False
    because: str = ""
    """The operator's words for cordon, drain or fence."""
    hostname: str = ""
    address: str | None = None
    pool: str = "default"
    version: str | None = None
    devices: int = 0
    devices_free: int | None = None
    replicas: int = 0


class EngineReply(Reply):
    """An engine installed on a node."""

    engine: str
    version: str
    path: str


class CachedWeightsReply(Reply):
    """Weights that lie whole on a node."""

    ref: str
    size_bytes: int


class ShardReply(Reply):
    """One engine process."""

    id: str
    node: str
    rank: int
    state: str
    devices: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    pid: int | None = None
    started_at: float | None = None
    restarts: int = 0
    cause: str | None = None
    """Failure cause, as the operations handbook lists them."""
    message: str = ""
    hint: str = ""
    log_tail: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    progress: str = ""
    """E.g. `downloading weights 1.2 of 4.0 GiB`."""
    progress_done: float | None = None
    progress_total: float | None = None
    """For a bar, in one unit; null: not known."""
    retry_in_s: float | None = None


class ReplicaReply(Reply):
    """One running copy of a model."""

    id: str
    model: str
    profile: str
    state: str
    reason: str = ""
    since_at: float | None = None
    nodes: tuple[str, ...] = ()
    devices: int = 0
    restarts: int = 0
    in_flight: int | None = None
    shards: tuple[ShardReply, ...] = ()


class NodeDetailReply(NodeReply):
    """One node with all that it has."""

    labels: Mapping[str, str] = {}
    fabric: Mapping[str, str] = {}
    cpu_count: int = 0
    ram_mib: int = 0
    ram_available_mib: int | None = None
    disk_free_mib: int | None = None
    device_list: tuple[DeviceReply, ...] = ()
    engines: tuple[EngineReply, ...] = ()
    weights: tuple[CachedWeightsReply, ...] = ()
    replica_list: tuple[ReplicaReply, ...] = ()


class ModelReply(Reply):
    """One model that clients may ask for."""

    name: str
    aliases: tuple[str, ...] = ()
    owner: str | None = None
    """`api`, `file:NAME`, or null for a static endpoint's."""
    state: str
    ready: int = 0
    wanted_min: int | None = None
    wanted_max: int | None = None
    in_flight: int = 0
    queued: int = 0
    expected_wait_s: float | None = None
    refusal: RefusalReply | None = None


class EndpointReply(Reply):
    """A place that requests are sent to."""

    id: str
    url: str
    models: tuple[str, ...]
    engine: str = ""
    pool: str = ""
    priority: int = 0
    weight: float = 1.0
    node: str | None = None
    replica: str | None = None
    draining: bool = False
    state: str | None = None
    """As the router finds it: ready, ejected, unhealthy; null: not known."""
    in_flight: int | None = None
    max_inflight: int | None = None
    role: str | None = None
    """Half of each request that it computes, prefill or decode; null: whole requests."""


class RouteReply(Reply):
    """What the router would do with a request for a model now."""

    model: str
    state: str
    chosen: str | None = None
    because: str = ""
    endpoints: tuple[EndpointReply, ...] = ()
    refusal: str | None = None


class NodesReply(Reply):
    nodes: tuple[NodeReply, ...]
    next: str | None = None
    """Pass as `after` for the next page; null on the last."""


class ModelsReply(Reply):
    models: tuple[ModelReply, ...]
    next: str | None = None


class ReplicasReply(Reply):
    replicas: tuple[ReplicaReply, ...]
    next: str | None = None


class EndpointsReply(Reply):
    endpoints: tuple[EndpointReply, ...]
    next: str | None = None
