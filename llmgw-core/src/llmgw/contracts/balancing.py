"""How a request chooses among the endpoints of its model.

Called for each request on the event loop: a balancer must not wait, and its price is
measured (`nox -s bench`). Core has already left out endpoints that may not be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId
from llmgw.domain.loads import EngineLoad


class EndpointLoad(Protocol):
    """Live counters of one endpoint; read, never written, by a balancer."""

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def in_flight(self) -> int:
        """Requests of this router that have not ended."""
        ...

    @property
    def tokens_in_flight(self) -> int:
        """Estimated prompt tokens of those that have not sent a first byte."""
        ...

    @property
    def share(self) -> float:
        """Weight after slow start, 0.0 excluded."""
        ...

    @property
    def engine_load(self) -> EngineLoad | None:
        """The newest reading of its metrics; None: none, or too old."""
        ...


class RoutedRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a balancer may look at. A struct and no dataclass: one is made for each request."""

    model: str
    session_key: str | None  #: from the configured header or the `user` field
    prompt: bytes  #: the raw messages or prompt, at most `prompt_bytes` of it; b"" unless asked for
    body_bytes: int
    seed: float  #: 0.0 up to but never 1.0, drawn once per request
    suspect: bytes = b""
    """Its fingerprint, where an engine has died with such a request in flight: core keeps it away
    from others, and its like together. For balancers it means nothing."""


class Balancer(Protocol):
    """One way of choosing, made from the options of a routing profile."""

    prompt_bytes: int
    """How much of the prompt `choose` looks at; 0 spares the router from finding it."""

    def choose(self, request: RoutedRequest, usable: Sequence[EndpointLoad]) -> int:
        """Return the index of the endpoint to use. usable is never empty."""
        ...

    def forget(self, endpoint: EndpointId) -> None:
        """The endpoint left, or a new process stands behind it: drop what was learnt of it."""
        ...


@runtime_checkable
class ReadsSession(Protocol):
    """A balancer that wants `RoutedRequest.session_key`."""

    session_header: str | None  #: lower case; None: no header names a session
    session_user_field: bool  #: the body's `user` is the key where the header is absent


@runtime_checkable
class ReadsEngineLoad(Protocol):
    """A balancer that looks at `EndpointLoad.engine_load`: metrics are then read more often."""

    reads_engine_load: bool


@runtime_checkable
class HasIndex(Protocol):
    """A balancer that remembers requests, within bounds that the metrics show."""

    @property
    def index_size(self) -> int:
        """Entries held now."""
        ...


@runtime_checkable
class TellsMatch(Protocol):
    """A balancer that chooses by what an endpoint has computed before; told to who asks why."""

    @property
    def match(self) -> tuple[int, int]:
        """Blocks of the last request that its endpoint has computed, and blocks looked at."""
        ...


class BalancerFactory(Protocol):
    """A kind of balancer, e.g. `prefix`."""

    @property
    def name(self) -> str: ...

    def make(self, options: Mapping[str, object]) -> Balancer:
        """Build one for one model. Raises ConfigError with a path per bad option."""
        ...
