"""What all exchanges of a router share, and what each leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from llmgw.clock import Clock
from llmgw.config.server import Deadlines
from llmgw.contracts.pairing import Pairing
from llmgw.domain.ids import EndpointId
from llmgw.router.admission import Admission
from llmgw.router.forward.deaths import Deaths
from llmgw.router.forward.envelope import Envelope
from llmgw.router.forward.legs import Legs
from llmgw.router.metrics import RouterMetrics
from llmgw.router.pool import ConnectionPool
from llmgw.router.selection import Outcome, Reservation, Selector
from llmgw.router.sse import Usage
from llmgw.router.timers import TimerWheel


class Ending(msgspec.Struct, kw_only=True):
    """One request that is over, for accounting."""

    envelope: Envelope
    endpoint: str | None  #: the last one tried; None: none
    outcome: Outcome | None  #: None: refused before any engine had it
    status: int  #: what the client got, or would have got
    attempts: int
    usage: Usage | None  #: None: the engine said nothing, and nothing is invented
    first_token_s: float | None  #: since the request's last byte
    duration_s: float
    prefill: str = ""  #: the endpoint that was asked for the prompt, if it was another


class Tracing(Protocol):
    """Follows requests, and what is noted beside them, for somebody outside. Must not wait."""

    def begin(self, envelope: Envelope) -> None:
        """A request is about to look for an endpoint; what engines will see of it may change."""
        ...

    def ending(self, then: Callable[[Ending], None]) -> Callable[[Ending], None]:
        """Return what to call at the end of each request that has begun; it calls `then`."""
        ...

    def note(
        self, name: str, *, took_s: float, attributes: Mapping[str, str | int | float | bool]
    ) -> None:
        """Something that belongs to no request has just ended."""
        ...

    def close(self) -> None:
        """Hand over what is left. The one method that may wait, for seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardParts:
    """The rooms below, wired once per router."""

    deadlines: Deadlines
    clock: Clock
    wheel: TimerWheel
    selector: Selector
    admission: Admission[Reservation]
    deaths: Deaths
    pool: ConnectionPool
    legs: Legs
    metrics: RouterMetrics
    suspect: Callable[[EndpointId], None]  #: asked to look at an endpoint at once
    ended: Callable[[Ending], None]
    pairings: Mapping[str, Pairing] = field(default_factory=dict)
    """How engines share requests, by engine."""
    tracing: Tracing | None = None
