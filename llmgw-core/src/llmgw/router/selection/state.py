"""What this router knows of one endpoint's process: counters, health, the newest reading."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import ModelName
from llmgw.domain.loads import EngineLoad
from llmgw.router.selection.rules import ramped

_UNLIMITED = sys.maxsize


class Moment:
    """The time of the newest decision, shared by all states so that reading a load's age is free."""

    __slots__ = ("now",)

    def __init__(self, now: float) -> None:
        self.now = now


class Condition(StrEnum):
    """Why an endpoint is used or not, worst first."""

    DRAINING = "draining"
    STUCK = "stuck"
    GONE = "gone"
    UNHEALTHY = "unhealthy"
    EJECTED = "ejected"
    HALF_OPEN = "half_open"
    SLOW_START = "slow_start"
    HEALTHY = "healthy"


@dataclass(frozen=True, slots=True, eq=False)
class Death:
    """The end of one engine process, whoever was in flight then. Equal to itself only."""

    at: float  #: monotonic seconds, when it was found out


class EndpointState:
    """Counters of one life of one endpoint; written by the selector only.

    A restarted process gets a state of its own, so that requests of the old one are given back
    to the old one's counters.
    """

    __slots__ = (
        "_load",
        "_load_at",
        "_load_fresh_s",
        "_moment",
        "death",
        "ejected_until",
        "ejections",
        "endpoint",
        "failures",
        "half_open",
        "in_flight",
        "is_answering",
        "is_gone",
        "is_stuck",
        "largest_prompt",
        "last_end",
        "limit",
        "lines",
        "models",
        "one_alone",
        "part",
        "probe",
        "ramp_from",
        "share",
        "tokens_in_flight",
    )

    def __init__(self, endpoint: Endpoint, moment: Moment, *, load_fresh_s: float) -> None:
        self.endpoint = endpoint
        self.models: tuple[ModelName, ...] = ()  #: canonical names of the models that it serves
        self.lines: tuple[ModelName, ...] = ()  #: names of the routes it is in, halves told apart
        self.in_flight = 0
        self.tokens_in_flight = 0
        self.largest_prompt = 0  #: tokens, of those in `tokens_in_flight` or a little before
        self.share = endpoint.weight
        self.limit = 0  #: requests in flight below which it is chosen; 0 while it is left out
        self.failures = 0  #: in a row
        self.ejections = 0  #: in a row, no slow start completed between them
        self.ejected_until: float | None = None
        self.half_open = False  #: the ejection is over, no probe has succeeded yet
        self.probe: object | None = None  #: the one reservation that decides, while it is held
        self.part = (
            endpoint.max_inflight
        )  #: of `max_inflight`, this router's share; None: not limited
        self.one_alone = 0  #: requests in flight that others should be kept away from
        self.is_answering = True  #: by the router's own health checks
        self.is_gone = False  #: nobody listens at its address, so asking there is of no use
        self.is_stuck = False  #: requests run, tokens stand still
        self.ramp_from: float | None = None  #: slow start began; None: over
        self.last_end: float | None = None  #: when the last request ended
        self.death: Death | None = None  #: of the process, the newest that was found out
        self._moment = moment
        self._load: EngineLoad | None = None
        self._load_at = 0.0
        self._load_fresh_s = load_fresh_s
        self.settle()

    def join(self, line: ModelName, model: ModelName) -> None:
        """Become a member of a route."""
        self.lines += (line,)
        self.models += (model,)

    def leave(self, line: ModelName) -> None:
        """Be no member of a route any more."""
        at = self.lines.index(line)
        self.lines = (*self.lines[:at], *self.lines[at + 1 :])
        self.models = (*self.models[:at], *self.models[at + 1 :])

    @property
    def engine_load(self) -> EngineLoad | None:
        """The newest reading of its metrics; None: none, or too old to mean anything."""
        if self._load is not None and self._moment.now - self._load_at > self._load_fresh_s:
            self._load = None
        return self._load

    def read(self, load: EngineLoad | None, now: float) -> None:
        """Take a new reading; None: the page said nothing."""
        self._load = load
        self._load_at = now

    def prompt_done(self, tokens: int) -> None:
        """A prompt has been computed, or will not be."""
        self.tokens_in_flight -= tokens
        if not self.tokens_in_flight:
            self.largest_prompt = 0

    @property
    def capacity(self) -> int:
        """Requests that it may have from here at a time."""
        return _UNLIMITED if self.part is None else self.part

    @property
    def is_ready(self) -> bool:
        """Published, not draining, there, and working if it works at all."""
        return not (self.endpoint.draining or self.is_stuck or self.is_gone)

    @property
    def is_healthy(self) -> bool:
        """Ready, answering and not left out for its failures."""
        return self.is_ready and self.is_answering and not self.is_ejected

    @property
    def is_ejected(self) -> bool:
        """True until a probe has succeeded, half-open included."""
        return self.half_open or self.ejected_until is not None

    @property
    def condition(self) -> Condition:
        if self.endpoint.draining:
            return Condition.DRAINING
        if self.is_stuck:
            return Condition.STUCK
        if self.is_gone:
            return Condition.GONE
        if not self.is_answering:
            return Condition.UNHEALTHY
        if self.ejected_until is not None:
            return Condition.EJECTED
        if self.half_open:
            return Condition.HALF_OPEN
        return Condition.HEALTHY if self.ramp_from is None else Condition.SLOW_START

    def settle(self) -> None:
        """Set `limit` from everything else. Called after each change but a counter's."""
        closed = (
            not (self.is_ready and self.is_answering)
            or self.ejected_until is not None
            or self.probe is not None
        )
        self.limit = 0 if closed else self.capacity

    def ramp(self, now: float, slow_start_s: float) -> None:
        """Set `share` for this moment of its slow start."""
        if self.ramp_from is not None:
            since_s = now - self.ramp_from
            self.share = ramped(self.endpoint.weight, since_s=since_s, slow_start_s=slow_start_s)
            if since_s >= slow_start_s:
                self.ramp_from = None
                self.ejections = 0  # it has been good for long enough to begin anew
        else:
            self.share = self.endpoint.weight
