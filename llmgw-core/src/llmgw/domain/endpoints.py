"""What the control plane hands to routers, and what routers hand back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw.domain.ids import EndpointId, ModelName, NodeId, ReplicaId
from llmgw.domain.plans import Refusal
from llmgw.domain.roles import Role
from llmgw.domain.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A ready replica as the router sees it, or a static one from the configuration."""

    id: EndpointId
    url: str  #: scheme, host and port, perhaps a path; no trailing slash
    models: tuple[ModelName, ...]  #: canonical name first, then aliases
    engine: str = ""
    pool: str = "default"
    weight: float = 1.0
    priority: int = 0  #: of its profile; higher is preferred
    incarnation: str = ""  #: changes when the process behind it does: caches and health start anew
    credential: Secret | None = None  #: bearer token that the engine asks for
    headers: Mapping[str, str] = field(default_factory=dict)  #: added to each request
    health_path: str | None = "/health"  #: None: not probed
    metrics_path: str | None = None  #: None: load is not read
    max_inflight: int | None = None  #: None: not limited
    served_name: ModelName | None = None  #: what the engine calls the model, if not the asked name
    cancels_plain_requests: bool = True
    """False: the engine generates to the end after a client of a plain request left (llama.cpp);
    the router then asks with `stream: true` and assembles the answer."""
    node: NodeId | None = None
    replica: ReplicaId | None = None
    draining: bool = False  #: present for open streams only; no new request
    adapters: Mapping[ModelName, str] = field(default_factory=dict)
    """LoRA adapters that it has loaded: the name asked for, and what it wants to hear for it."""
    role: Role | None = None  #: the half of each request that it computes; None: whole requests
    meeting_port: int | None = None
    """Of a prefill endpoint: where, on the host of its URL, decode engines meet it. None: it says
    so itself in its answers, or has the port that is usual for its engine."""

    def is_same_process(self, other: Endpoint) -> bool:
        """Say whether `other` is the same process at the same place, whatever else has changed."""
        return self.incarnation == other.incarnation and self.url == other.url


class ModelState(StrEnum):
    """What a router does with a request for a model that has no endpoint."""

    SERVING = "serving"
    WAKING = "waking"  #: hold, an endpoint is on its way
    ASLEEP = "asleep"  #: hold, and nudge
    UNPLACEABLE = "unplaceable"  #: 503 with the refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One catalog entry as routers need it."""

    names: tuple[ModelName, ...]  #: canonical name first, then aliases
    state: ModelState
    expected_wait_s: float | None = None  #: measured time to wake, for `Retry-After`
    refusal: Refusal | None = None  #: why nothing can run
    routing: str | None = None  #: routing profile
    created: int = 0  #: Unix seconds, shown in `/v1/models`


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointUsage:
    """What one router knows of one endpoint. Ages, not times: clocks of two machines differ."""

    idle_s: (
        float | None
    )  #: since the last request *ended*; 0 while one is in flight; None: never used
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterUsage:
    """One snapshot, read once a tick, summed over the routers that report."""

    endpoints: Mapping[EndpointId, EndpointUsage] = field(default_factory=dict)
    queued: Mapping[ModelName, int] = field(default_factory=dict)  #: requests held or queued
