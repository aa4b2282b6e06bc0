"""What a node says about itself, and what the control plane makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw.domain.ids import DeviceId, NodeId
from llmgw.domain.weights import WeightFacts


class DeviceHealth(StrEnum):
    """Whether a device may be given out."""

    OK = "ok"
    FAILED = (
        "failed"  #: does not answer, or reported a fatal error; kept in the list, never given out
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that holds memory of a device."""

    pid: int
    memory_mib: int | None  #: None: the driver does not say
    ours: bool  #: carries the cookie of this agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator. A reading that the driver refused is None, never 0 (C045)."""

    id: DeviceId
    index: int  #: order on the node, for people only
    kind: str  #: product name, e.g. `NVIDIA H100 80GB HBM3`
    vendor: str  #: `nvidia`, `amd`, …
    memory_mib: int | None
    memory_used_mib: int | None = None
    memory_shared: bool = False  #: memory is the host's RAM (unified memory)
    utilisation: float | None = None  #: 0.0 to 1.0
    health: DeviceHealth = DeviceHealth.OK
    health_reason: str = ""
    pci_address: str | None = None
    parent: DeviceId | None = None  #: the physical device of a MIG partition
    island: str | None = None  #: devices with the same value are joined by fast links (NVLink)
    labels: Mapping[str, str] = field(default_factory=dict)
    processes: tuple[DeviceProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEngine:
    """An engine that the node can launch without installing anything."""

    engine: str
    version: str
    path: str  #: environment or program, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallableEngine:
    """A version that the node has a requirement set of its own for, besides those of adapters."""

    engine: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedWeights:
    """Weights that lie whole and verified on the node."""

    ref: str  #: as written in the catalog
    size_bytes: int
    facts: WeightFacts | None = None  #: as their headers have them; None: not readable, or not said
    manifest: str | None = None
    """Digest of their list of files and hashes; None: other nodes cannot have them from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInventory:
    """The whole of a node's hardware and software, sent with each registration."""

    node: NodeId
    agent_uid: str  #: of the state folder; another uid under a live node id is refused
    boot_id: str  #: of the host; a new one means that nothing survived
    machine_id: str  #: of the host; two agents with one machine id share its ports and devices
    agent_version: str
    hostname: str
    data_address: str  #: where routers and other nodes reach engines; an IP, no brackets
    pool: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    fabric: Mapping[str, str] = field(default_factory=dict)  #: e.g. `{"ib": "rail-group-1"}`
    cpu_count: int = 0
    ram_mib: int = 0
    ram_available_mib: int | None = None
    disk_free_mib: int | None = None  #: for weights, without what the agent keeps free
    port_range: tuple[int, int] = (20000, 29999)  #: inclusive
    devices: tuple[Device, ...] = ()
    engines: tuple[InstalledEngine, ...] = ()
    weights: tuple[CachedWeights, ...] = ()
    capabilities: frozenset[str] = (
        frozenset()
    )  #: commands and abilities that this agent understands
    leaving: bool = False  #: the agent stops its engines and will end
    installable: tuple[InstallableEngine, ...] = ()
    weights_port: int | None = None
    """Of `data_address`, where other nodes get weights; None: nobody does."""


class NodeState(StrEnum):
    """RELIABILITY section 3: what silence means."""

    READY = "ready"
    SUSPECT = "suspect"  #: 3 heartbeats missed: no new placement, endpoints stay
    DISCONNECTED = "disconnected"  #: endpoints stay as long as the router's own checks pass
    LOST = "lost"  #: replace elsewhere; its devices stay booked
    FENCED = "fenced"  #: an operator says that nothing runs there
