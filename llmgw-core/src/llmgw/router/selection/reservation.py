"""A slot that has been taken, and how its request ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from llmgw.domain.endpoints import Endpoint
from llmgw.router.selection.lines import Choice
from llmgw.router.selection.state import EndpointState


class Outcome(StrEnum):
    """How a request on an endpoint ended."""

    OK = "ok"
    CLIENT_LEFT = "client_left"
    CLIENT_ERROR = "client_error"  #: the engine refused it with a 4xx: no fault of the engine
    ENGINE_BUSY = "engine_busy"  #: 429 or 503 of the engine: full, not broken
    ENGINE_ERROR = "engine_error"  #: 500, 502, 504 or an answer that is no HTTP
    CONNECT_FAILED = "connect_failed"
    RESET = "reset"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    PARTNER_FAILED = "partner_failed"  #: the engine that computes the other half; this one did well


FAILURES = frozenset(
    {
        Outcome.ENGINE_ERROR,
        Outcome.CONNECT_FAILED,
        Outcome.RESET,
        Outcome.FIRST_BYTE_TIMEOUT,
        Outcome.IDLE_TIMEOUT,
    }
)
"""What is the fault of an engine. A client's mistake is not, nor is an engine that is full."""


NEITHER = frozenset({Outcome.CLIENT_LEFT, Outcome.PARTNER_FAILED})
"""What says nothing of the engine, neither good nor bad."""


class Learner(Protocol):
    """The selector, as a reservation needs it."""

    def restore(self, state: EndpointState) -> None:
        """An ejected endpoint has proven itself."""
        ...

    def ended(self, reservation: Reservation, outcome: Outcome) -> None:
        """The slot is free again."""
        ...


class Reservation(msgspec.Struct, eq=False):
    """A slot of one endpoint, held from the choice until `release`. A struct, for price."""

    _learner: Learner | None  #: None: released
    state: EndpointState
    _choice: Choice
    _usable: int
    _tokens: int
    is_trial: bool  #: it decides whether an ejected endpoint is used again
    load_before: int  #: requests in flight when it was chosen
    suspect: bytes = b""  #: its fingerprint, if others are kept away; set by the selector
    match: tuple[int, int] | None = None  #: as `TellsMatch`; set by the selector
    prefill: Reservation | None = None  #: of the engine that computes the prompt, if another

    @property
    def endpoint(self) -> Endpoint:
        return self.state.endpoint

    @property
    def is_held(self) -> bool:
        """False once it has been released."""
        return self._learner is not None

    @property
    def because(self) -> str:
        """Why this endpoint, for people: `least_outstanding: 2 in flight, 3 of 4 usable, …`."""
        endpoint = self.state.endpoint
        text = (
            f"{self._choice.profile.name}: {self.load_before} in flight, "
            f"{self._usable} of {self._choice.size} usable, "
            f"pool {endpoint.pool}, priority {endpoint.priority}"
        )
        if self.match is not None:
            text += f", {self.match[0]} of {self.match[1]} prompt blocks known there"
        if self.suspect:
            text += ", kept alone"
        if self.is_trial:
            text += ", trial after an ejection"
        if self.prefill is not None:
            prompt = f"prompt on {self.prefill.endpoint.id} by {self.prefill.because}"
            text = f"{prompt}; answer on {endpoint.id} by {text}"
        return text

    def take_prompt_from(self, prefill: Reservation) -> None:
        """Another engine computes the prompt."""
        self.prefill = prefill
        self.state.prompt_done(self._tokens)
        self._tokens = 0

    def first_byte(self) -> None:
        """The engine has begun to answer: its prompt is computed."""
        if self._learner is not None:
            self.state.prompt_done(self._tokens)
            self._tokens = 0
            if self.is_trial:
                # A stream may go on for minutes; its first byte already proves the engine.
                self.is_trial = False
                self._learner.restore(self.state)

    def release(self, outcome: Outcome) -> None:
        """Give the slot back and say how it went. Further calls do nothing."""
        learner, self._learner = self._learner, None
        if learner is not None:
            state = self.state
            state.in_flight -= 1
            state.tokens_in_flight -= self._tokens  # as `prompt_done`, without a call
            if not state.tokens_in_flight:
                state.largest_prompt = 0
            learner.ended(self, outcome)

    def undo(self) -> None:
        """Give the slot back as if it had never been taken: its endpoint was asked nothing."""
        if self.prefill is not None:
            self.prefill.undo()
        last_end = self.state.last_end
        self.release(Outcome.CLIENT_LEFT)
        self.state.last_end = last_end
