"""A request that two engines share: what each is sent, and the prefill engine's side of it.

The decode engine's side is an exchange like any other. Which engine gets what, and in which
order, the engine's adapter says (`contracts.pairing`).
"""

from __future__ import annotations

import secrets
from typing import Protocol

import msgspec

from llmgw.contracts.pairing import Fields, Halves, HandoverMissing, Pairing, SharedRequest
from llmgw.errors import RequestError
from llmgw.router import replies
from llmgw.router.forward.accounting import observe
from llmgw.router.forward.edits import body_for_engine, with_fields
from llmgw.router.forward.envelope import Envelope
from llmgw.router.forward.heads import origin_headers, request_head
from llmgw.router.forward.legs import Leg
from llmgw.router.forward.parts import ForwardParts
from llmgw.router.forward.phases import OUTCOME_OF, SUSPICIOUS
from llmgw.router.pool import (
    AnswerHead,
    EngineConnection,
    EngineExchange,
    EngineFailure,
    Opening,
    Unreachable,
)
from llmgw.router.pool.pool import split_url
from llmgw.router.routes import ModelPlace
from llmgw.router.selection import Outcome, Reservation
from llmgw.router.sse import find_error

_ANSWER_BYTES = 16 * 1024 * 1024
"""Of a prefill engine. It holds the number of each block of the prompt's cache."""


class Owner(Protocol):
    """The exchange, as the other half of its request sees it."""

    @property
    def has_shown(self) -> bool:
        """Bytes of the decode engine have gone to the client: the prompt is of no more interest."""
        ...

    def prompt_computed(self) -> None:
        """The decode engine may be asked now."""
        ...

    def prompt_unreachable(self, why: Unreachable) -> None: ...

    def prompt_lost(self, outcome: Outcome, error: RequestError) -> None:
        """The prefill engine broke off, or said what it should not."""
        ...

    def prompt_refused(self, status: int, body: bytes, retry_after: bytes | None) -> None: ...


class Pair(EngineExchange):
    """One try of a shared request. Implements `EngineExchange` towards the prefill engine."""

    __slots__ = (
        "_answer",
        "_asked",
        "_began",
        "_connection",
        "_envelope",
        "_fields",
        "_halves",
        "_head",
        "_opening",
        "_owner",
        "_pairing",
        "_parts",
        "due",
        "failed",
        "is_done",
        "leg",
        "reservation",
    )

    def __init__(
        self, parts: ForwardParts, envelope: Envelope, reservation: Reservation, owner: Owner
    ) -> None:
        """reservation: the prefill engine's slot, which is given back by `release` at the latest."""
        self._parts = parts
        self._envelope = envelope
        self._owner = owner
        self.reservation = reservation
        self.leg = parts.legs.find(reservation.endpoint, envelope)
        self.leg.series.in_flight += 1
        self._pairing: Pairing | None = parts.pairings.get(reservation.endpoint.engine)
        self._halves: Halves | None = None
        self._fields: Fields = {}  #: for the decode engine
        self._head: AnswerHead | None = None
        self._answer = bytearray()
        self._opening: Opening | None = None
        self._connection: EngineConnection | None = None
        self._began = parts.clock.monotonic()
        self._asked = False
        self.due = 0.0  #: when the first byte of the decode engine is due, by the wheel's clock
        self.failed = False  #: the prefill engine is why this try has failed
        self.is_done = False  #: nothing more is asked of the prefill engine

    def begin(self, limit_s: float) -> bool:
        """Ask the prefill engine. Return whether the decode engine is to be asked at once.

        limit_s: for the first byte to the client, both engines together. Raises RequestError.
        """
        self.due = self._parts.wheel.now + limit_s
        pairing, envelope = self._pairing, self._envelope
        if pairing is None:
            raise _unknown_engine(self.reservation.endpoint.engine)
        self._fields = dict.fromkeys(pairing.reserved)
        if envelope.route.model is ModelPlace.JSON:
            self._halves = pairing.share(self._shared())
        if self._halves is None:
            # The decode engine does it alone, and this one is asked nothing.
            self._drop()
            return True
        if self._halves.decode is not None:
            self._fields = {**self._fields, **self._halves.decode}
        self._ask()
        return not self._is_first

    def _shared(self) -> SharedRequest:
        endpoint, envelope = self.reservation.endpoint, self._envelope
        return SharedRequest(
            path=envelope.route.engine_path,
            copies=copies_of(envelope.body),
            host=split_url(endpoint.url).host,
            meeting_port=endpoint.meeting_port,
            number=secrets.randbits(62),
        )

    @property
    def _is_first(self) -> bool:
        """The decode engine waits for what the prefill engine answers."""
        return self._halves is not None and self._halves.decode is None

    def blame(self) -> None:
        """The try has failed by time: by the prefill engine's, unless that is done."""
        self.failed = not self.is_done

    @property
    def asked(self) -> str:
        """Return the endpoint that was asked for the prompt; "": none was."""
        return self.reservation.endpoint.id if self._asked else ""

    def origin(self, decode: Leg) -> bytes:
        """Return the headers that say where an answer comes from."""
        if not self._asked:
            return decode.origin
        name = self._envelope.target.name
        return origin_headers(name, self.leg.endpoint, decode.endpoint)

    def body_for_decode(self, body: bytes | bytearray) -> bytes | bytearray:
        """Return the body with what the decode engine must know of the other half."""
        if self._envelope.route.model is not ModelPlace.JSON:
            return body
        return with_fields(body, self._fields)

    # -- the prefill engine's side ----------------------------------------------------------

    def _ask(self) -> None:
        self._asked = True
        endpoint = self.reservation.endpoint
        connection = self._parts.pool.take(endpoint)
        if connection is not None:
            self._send(connection)
        else:
            self._open()

    def _open(self) -> None:
        pool = self._parts.pool
        self._opening = pool.open(self.reservation.endpoint, self._opened, self._unreachable)

    def _opened(self, connection: EngineConnection) -> None:
        self._opening = None
        if self._owner.has_shown:
            connection.close()
            self._finish(Outcome.CLIENT_LEFT)
        else:
            self._send(connection)

    def _unreachable(self, why: Unreachable) -> None:
        self._opening = None
        if not self._is_over(Outcome.CONNECT_FAILED):
            self._owner.prompt_unreachable(why)

    def _send(self, connection: EngineConnection) -> None:
        envelope, leg = self._envelope, self.leg
        body = body_for_engine(envelope, model=leg.served, stream=envelope.stream)
        fields = {**self._fields, **(self._halves.prefill if self._halves else {})}
        body = with_fields(body, fields)
        self._connection = connection
        self._head = None
        self._answer.clear()
        connection.send(self, request_head(leg.head, envelope, len(body)), body)

    def answer_head(self, head: AnswerHead) -> None:
        self._head = head

    def answer_data(self, data: bytes) -> None:
        self._answer += data
        if len(self._answer) > _ANSWER_BYTES:
            self.abandon()
            self._lost(Outcome.ENGINE_ERROR, replies.engine_lost())

    def answer_end(self) -> None:
        self._connection = None
        head, answer = self._head, bytes(self._answer)
        self._answer.clear()
        if head is None:
            return
        retry_after = head.headers.get(b"retry-after")
        error = find_error(answer) if b"text/event-stream" in head.content_type else None
        if head.status >= 400 or error is not None:
            if not self._is_over(Outcome.ENGINE_ERROR):
                self._owner.prompt_refused(head.status, error or answer, retry_after)
            return
        if self._is_first and self._pairing is not None:
            try:
                self._fields = {**self._fields, **self._pairing.handed_over(answer)}
            except HandoverMissing as missing:
                self._lost(Outcome.ENGINE_ERROR, _not_handed_over(missing))
                return
        self._finish(Outcome.OK)
        if self._is_first:
            self._owner.prompt_computed()

    def answer_lost(self, failure: EngineFailure, *, stale: bool) -> None:
        self._connection = None
        if stale:
            self._open()  # it never saw the request (C026)
        else:
            self._lost(OUTCOME_OF[failure], replies.engine_lost())

    def _lost(self, outcome: Outcome, error: RequestError) -> None:
        if not self._is_over(outcome):
            self._owner.prompt_lost(outcome, error)

    def _is_over(self, outcome: Outcome) -> bool:
        """Return whether the client has an answer already: then this is the engine's affair only."""
        if self._owner.has_shown:
            self._finish(outcome)
            return True
        self.failed = True
        return False

    # -- letting go ------------------------------------------------------------------------

    def abandon(self) -> None:
        """Make the prefill engine stop working for this request."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None

    def release(self, outcome: Outcome) -> Outcome:
        """End the try. Return how the decode engine has fared in it.

        outcome: of the try as a whole.
        """
        self.abandon()
        if self.is_done:
            return outcome
        if not self._asked:
            self._drop()
            return Outcome.PARTNER_FAILED
        if self.failed:
            self._finish(outcome)
            return Outcome.PARTNER_FAILED
        self._finish(outcome if outcome in _SHARED else Outcome.PARTNER_FAILED)
        return outcome

    def _drop(self) -> None:
        """Give the slot back as if it had never been taken."""
        self.is_done = True
        self.leg.series.in_flight -= 1
        self.reservation.undo()

    def _finish(self, outcome: Outcome) -> None:
        """Give the slot back, once."""
        if self.is_done:
            return
        self.is_done = True
        series = self.leg.series
        series.in_flight -= 1
        series.outcomes[outcome] = series.outcomes.get(outcome, 0) + 1
        if outcome is Outcome.OK:
            # Tokens and times to first tokens are the decode engine's: once per request.
            duration_s = self._parts.clock.monotonic() - self._began
            observe(series, False, None, None, duration_s)
        self.reservation.release(outcome)
        if outcome in SUSPICIOUS:
            self._parts.suspect(self.reservation.endpoint.id)


_SHARED = frozenset({Outcome.OK, Outcome.CLIENT_LEFT})
"""Outcomes of a whole try that are those of both engines."""


class _Copies(msgspec.Struct):
    n: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()


_read_copies = msgspec.json.Decoder(_Copies).decode
_read_prompts = msgspec.json.Decoder(list[msgspec.Raw]).decode


def copies_of(body: bytes | bytearray) -> int:
    """Return how many answers a body asks for: `n` for each of its prompts, at least 1.

    A list of numbers is one prompt, in tokens. What makes no sense counts as one: the engine
    will say what is wrong with it.
    """
    try:
        said = _read_copies(body)
        number = (msgspec.json.decode(said.n, type=int | None) if said.n else 1) or 1
        prompts = _read_prompts(said.prompt) if bytes(memoryview(said.prompt)[:1]) == b"[" else []
    except msgspec.DecodeError:
        return 1
    is_batch = bool(prompts) and bytes(prompts[0])[:1] in (b'"', b"[")
    return max(1, number) * (len(prompts) if is_batch else 1)


def _not_handed_over(missing: HandoverMissing) -> RequestError:
    return RequestError(
        f"The prompt was computed, but not handed over: {missing}.",
        status=502,
        code="handover_missing",
        kind="api_error",
    )


def _unknown_engine(engine: str) -> RequestError:
    return RequestError(
        f"This router does not know how engines of kind {engine!r} share requests: the package "
        "of that engine is not installed beside it.",
        status=503,
        code="engine_unknown",
        kind="server_error",
    )
