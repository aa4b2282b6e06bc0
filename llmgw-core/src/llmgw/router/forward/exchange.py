"""One request from its envelope to its end: a slot, an engine, an answer, perhaps a second try.

Driven by callbacks of the two sockets and of one deadline; there is no task per request and
no await per chunk. Every way out passes `_end`, once, so that no slot and no counter leaks.
"""

from __future__ import annotations

import zlib
from functools import partial

from llmgw.domain.endpoints import Endpoint, ModelState
from llmgw.domain.ids import EndpointId
from llmgw.errors import RequestError
from llmgw.router import replies
from llmgw.router.admission import Ticket
from llmgw.router.forward import timeouts
from llmgw.router.forward.accounting import observe
from llmgw.router.forward.answers import (
    Answer,
    AssembledAnswer,
    PlainAnswer,
    RefusedAnswer,
    Renaming,
    StreamAnswer,
)
from llmgw.router.forward.client import Client
from llmgw.router.forward.edits import body_for_engine
from llmgw.router.forward.envelope import Envelope
from llmgw.router.forward.heads import SSE_HEADERS, passed_headers, request_head, retry_after_s
from llmgw.router.forward.legs import Leg
from llmgw.router.forward.parts import Ending, ForwardParts
from llmgw.router.forward.phases import (
    CONNECT_TRIES,
    EVENT_STREAM,
    OUTCOME_OF,
    PINGS,
    RECONNECT_S,
    SUSPICIOUS,
    TRIES,
    Phase,
)
from llmgw.router.forward.poison import examine, fingerprint_of, quarantined, sample_of
from llmgw.router.pool import (
    AnswerHead,
    EngineConnection,
    EngineFailure,
    Opening,
    Unreachable,
)
from llmgw.router.routes import Assembly
from llmgw.router.selection import Outcome, Reservation
from llmgw.router.sse import Usage
from llmgw.router.table import Unavailable
from llmgw.router.timers import NEVER


class Exchange:
    """Implements `EngineExchange` towards the pool and `AnswerTarget` towards answers."""

    __slots__ = (
        "_answer",
        "_assembles",
        "_attempts",
        "_client",
        "_committed",
        "_connect_tries",
        "_connection",
        "_envelope",
        "_first_token_at",
        "_held_until",
        "_inflate",
        "_leg",
        "_opening",
        "_parts",
        "_phase",
        "_pieces",
        "_reservation",
        "_sample",
        "_ticket",
        "_tried",
        "_unreached",
        "_usage",
        "_whole_due",
        "has_shown",
        "hides_usage",
        "renaming",
    )

    def __init__(self, parts: ForwardParts, client: Client, envelope: Envelope) -> None:
        self._parts = parts
        self._client = client
        self._envelope = envelope
        self._phase = Phase.WAITING
        self._ticket: Ticket[Reservation] | None = None
        self._reservation: Reservation | None = None
        self._leg: Leg | None = None  #: of the reservation
        self._opening: Opening | None = None
        self._connection: EngineConnection | None = None
        self._answer: Answer | None = None
        self._assembles: Assembly | None = None  #: how a stream becomes the plain answer asked for
        self._inflate: zlib._Decompress | None = None
        self._tried: tuple[EndpointId, ...] = ()
        self._attempts = 0
        self._unreached = 0  #: of these, how many found nobody
        self._connect_tries = 0  #: likewise, since it was last in line
        self._held_until: float | None = None
        self._committed = False  #: the client has a status
        self._pieces = True  #: the answer is sent in pieces, not by its length
        self._usage: Usage | None = None
        self._first_token_at: float | None = None
        self._sample: bytes | None = None
        self._whole_due = NEVER
        self.has_shown = False
        self.hides_usage = False
        self.renaming: Renaming | None = None

    # -- getting an endpoint ---------------------------------------------------------------

    def start(self) -> None:
        """Ask for a slot; go on when there is one."""
        parts = self._parts
        limits = parts.deadlines
        if limits.whole_request is not None:
            self._whole_due = parts.wheel.now + limits.whole_request
        self._enter()

    def _enter(self) -> None:
        envelope, parts = self._envelope, self._parts
        self._phase = Phase.WAITING
        at_once = parts.admission.at_once(
            envelope.target, envelope.routed, priority=envelope.priority, profile=envelope.profile
        )
        if at_once is not None:
            self._dispatch(at_once)
            return
        ticket = parts.admission.enter(
            envelope.target,
            envelope.routed,
            grant=envelope.grant,
            priority=envelope.priority,
            profile=envelope.profile,
            on_ready=self._ready,
            on_refused=self._refused,
        )
        if self._phase is Phase.WAITING and self._reservation is None:
            self._ticket = ticket
            is_asleep = envelope.target.state in (ModelState.ASLEEP, ModelState.WAKING)
            if envelope.stream and is_asleep:
                self._client.deadline.set(parts.deadlines.hold_commit)

    def _ready(self, reservation: Reservation) -> None:
        self._ticket = None
        self._dispatch(reservation)

    def _refused(self, error: RequestError) -> None:
        self._ticket = None
        self._fail(error, None)

    def _dispatch(self, reservation: Reservation) -> None:
        parts = self._parts
        endpoint = reservation.endpoint
        self._reservation = reservation
        self._attempts += 1
        self._leg = leg = parts.legs.find(endpoint, self._envelope)
        leg.series.in_flight += 1
        self._phase = Phase.ASKED
        connection = parts.pool.take(endpoint.id)
        if connection is not None:
            self._send(connection, leg)
        else:
            self._open(endpoint)

    def _open(self, endpoint: Endpoint) -> None:
        self._client.deadline.due = NEVER  # the pool has its own limit
        self._opening = self._parts.pool.open(endpoint, self._opened, self._unreachable)

    def _opened(self, connection: EngineConnection) -> None:
        self._opening = None
        if self._leg is None:
            connection.abandon()
        else:
            self._send(connection, self._leg)

    def _unreachable(self, why: Unreachable) -> None:
        self._opening = None
        self._connect_tries += 1
        self._unreached += 1
        error = RequestError(
            f"The engine behind model {self._envelope.model!r} could not be reached: {why.reason}.",
            status=502,
            code="engine_unreachable",
            kind="api_error",
        )
        self._try_again(Outcome.CONNECT_FAILED, error, may_hold=why.is_away)

    def _send(self, connection: EngineConnection, leg: Leg) -> None:
        envelope, parts = self._envelope, self._parts
        self.renaming = leg.renaming
        self._assembles = None if envelope.stream else leg.assembly
        body = envelope.body
        asks_stream = envelope.stream or self._assembles is not None
        if asks_stream or leg.served != envelope.model:
            body = body_for_engine(envelope, model=leg.served, stream=asks_stream)
        self.hides_usage = asks_stream and not envelope.wants_usage and envelope.route.asks_usage
        self._connection = connection
        self._answer = None
        deadline = self._client.deadline
        if envelope.stream:
            deadline.set(self._within(self._first_byte_limit()))
        elif self._whole_due < NEVER:
            deadline.set(self._whole_due - parts.wheel.now)
        else:
            # A plain answer may take as long as it takes; its client is watched instead.
            deadline.due = NEVER
        connection.send(self, request_head(leg.head, envelope, len(body)), body)

    def _first_byte_limit(self) -> float:
        body_bytes = self._envelope.routed.body_bytes
        return timeouts.first_byte_limit_s(self._parts.deadlines, body_bytes)

    def _within(self, limit_s: float) -> float:
        return min(limit_s, self._whole_due - self._parts.wheel.now)

    # -- the engine's side -----------------------------------------------------------------

    def answer_head(self, head: AnswerHead) -> None:
        if self._phase is Phase.OVER:
            return
        if head.coding in (b"gzip", b"deflate", b"x-gzip"):
            # Asked for identity and got this: unpacked here, so that it can be read (C003).
            self._inflate = zlib.decompressobj(47)
            head.length = None
        else:
            self._inflate = None
        if head.status >= 400:
            self._answer = RefusedAnswer(self, head)
        elif b"text/event-stream" not in head.content_type:
            self._answer = PlainAnswer(self, head)
        elif self._assembles is not None:
            self._answer = AssembledAnswer(self, head, self._assembles)
        else:
            self._answer = StreamAnswer(self, ends_by_close=not head.is_framed)

    def answer_data(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            return
        if self._inflate is not None:
            try:
                data = self._inflate.decompress(data)
            except zlib.error:
                self.engine_vanished()
                return
        answer.data(data)
        if self._phase is Phase.ANSWERING:
            # Moved, not set: the wheel finds out when it comes by.
            due = self._parts.wheel.now + self._parts.deadlines.between_chunks
            self._client.deadline.due = min(due, self._whole_due)

    def answer_end(self) -> None:
        self._connection = None
        if self._answer is not None:
            self._answer.end()

    def answer_lost(self, failure: EngineFailure, *, stale: bool) -> None:
        self._connection = None
        if self._phase is Phase.OVER:
            return
        if stale and self._reservation is not None:
            # The engine closed an idle connection while we used it again: it never saw the
            # request, so this is neither a failure nor a retry (C026).
            self._open(self._reservation.endpoint)
            return
        if self._answer is not None and self._answer.is_whole():
            self._answer.end()
            return
        self._lost(OUTCOME_OF[failure], replies.engine_lost())

    def _lost(self, outcome: Outcome, error: RequestError) -> None:
        # Where the engine had begun to answer, asking again might do the work twice (C027).
        is_final = self.has_shown or not (self._envelope.stream or self._answer is None)
        reservation = self._reservation
        if outcome is not Outcome.RESET or reservation is None:
            if is_final:
                self._fail(error, outcome)
            else:
                self._try_again(outcome, error)
        elif is_final:
            examine(self._parts, reservation, self._fingerprint(), lambda _: None)
            self._fail(error, outcome)
        else:
            # Whether and how to go on depends on whether the engine has died of it.
            self._client.deadline.due = NEVER  # the pool has its own limit
            self._opening = examine(
                self._parts, reservation, self._fingerprint(), partial(self._examined, error)
            )

    def _examined(self, error: RequestError, deaths: int) -> None:
        self._opening = None
        if deaths > 1:
            self._fail(quarantined(), Outcome.RESET)
        else:
            self._try_again(Outcome.RESET, error, alone=deaths > 0)

    def _fingerprint(self) -> bytes:
        sample = self._sample if self._sample is not None else sample_of(self._envelope.body)
        return fingerprint_of(self._envelope.route.path, sample)

    # -- AnswerTarget ----------------------------------------------------------------------

    def take_usage(self, usage: Usage) -> None:
        if self._usage is None:
            self._usage = usage
        else:
            self._usage.merge(usage)

    def show_events(self, block: bytes) -> None:
        client = self._client
        if self.has_shown:
            client.write_piece(block)
            return
        self._first_byte()
        client.write(self._stream_head() + client.piece(block))

    def show_comments(self, block: bytes) -> None:
        client = self._client
        client.write(self._stream_head() + client.piece(block))

    def show_start(self, head: AnswerHead, length: int | None, data: bytes) -> None:
        if self._committed:
            self.engine_vanished()  # the client was promised events
            return
        self._first_byte()
        self._committed = True
        self._pieces = length is None
        client = self._client
        start = client.head(head.status, passed_headers(head) + self._reply_headers(), length)
        client.write(start + (client.piece(data) if self._pieces else data))

    def show_more(self, data: bytes) -> None:
        self._client.write(self._client.piece(data) if self._pieces else data)

    def show_whole(self, head: AnswerHead, body: bytes) -> None:
        if self._committed:
            self.engine_vanished()  # the client was promised events
            return
        self.has_shown = True
        self._first_token_at = self._parts.clock.monotonic()
        client = self._client
        start = client.head(head.status, passed_headers(head) + self._reply_headers(), len(body))
        client.write(start + body)
        self._end(Outcome.OK, head.status)
        client.finish(ended=False)

    def close_answer(self) -> None:
        self._end(Outcome.OK, 200)
        self._client.finish(ended=self._pieces)

    def engine_refused(self, status: int, body: bytes, retry_after: bytes | None) -> None:
        error = replies.read_engine_error(status, body)
        if status in (429, 503):
            error.retry_after_s = retry_after_s(retry_after)
            self._try_again(Outcome.ENGINE_BUSY, error)
        elif status in (502, 504) or (status == 200 and not self.has_shown):
            self._try_again(Outcome.ENGINE_ERROR, error)
        elif status == 200 or status >= 500:
            self._fail(error, Outcome.ENGINE_ERROR)
        else:
            self._fail(error, Outcome.CLIENT_ERROR)

    def engine_vanished(self) -> None:
        self._abandon()
        self._lost(Outcome.ENGINE_ERROR, replies.engine_lost())

    def _first_byte(self) -> None:
        self.has_shown = True
        self._first_token_at = self._parts.clock.monotonic()
        if self._reservation is not None:
            self._reservation.first_byte()
        # From here on no retry can come, so a stream need not hold its prompt; a sample
        # stays, in case the engine dies of it.
        self._sample = sample_of(self._envelope.body)
        self._envelope.body = b""
        self._phase = Phase.ANSWERING
        limit_s = self._parts.deadlines.between_chunks
        self._client.deadline.set(self._within(limit_s))
        if self._client.is_paused:
            self.client_paused()

    # -- what the client gets --------------------------------------------------------------

    def _stream_head(self) -> bytes:
        """Return the head of an event stream, b"" if the client has it."""
        if self._committed:
            return b""
        self._committed = True
        headers = EVENT_STREAM + SSE_HEADERS + self._reply_headers()
        return self._client.head(200, headers, None)

    def _reply_headers(self) -> bytes:
        reservation, leg = self._reservation, self._leg
        if reservation is None or leg is None:
            return self._envelope.reply_headers
        headers = b"%b%bx-llmgw-attempts: %d\r\n" % (
            self._envelope.reply_headers,
            leg.origin,
            self._attempts,
        )
        if self._envelope.wants_reasons:
            headers += b"x-llmgw-explain: %b\r\n" % reservation.because.encode("ascii", "replace")
        return headers

    def _try_again(
        self, outcome: Outcome, error: RequestError, *, alone: bool = False, may_hold: bool = False
    ) -> None:
        """Ask another endpoint, if rules and budget allow; else tell the client of the error.

        alone: as `Selector.reserve`. may_hold: the endpoint may come back while we wait.
        """
        parts = self._parts
        # An engine that put an error into its stream may still be talking: whatever else it
        # says must not mix with the next one's answer.
        self._abandon()
        self._answer = None
        if self._reservation is not None:
            self._tried = (*self._tried, self._reservation.endpoint.id)
        # A failed connect has asked nobody to do anything, so it cannot make an overload worse.
        free = outcome is Outcome.CONNECT_FAILED
        asked = self._attempts - self._unreached
        is_last = self._connect_tries >= CONNECT_TRIES if free else asked >= TRIES
        if self.has_shown or is_last or self._phase is Phase.OVER:
            self._fail(error, outcome)
            return
        if not free and not parts.selector.may_retry(self._envelope.target):
            self._fail(error, outcome)
            return
        if self._leg is not None:
            self._leg.series.retries += 1
        self._release(outcome)
        other = parts.selector.reserve(
            self._envelope.target,
            self._envelope.routed,
            exclude=frozenset(self._tried),
            profile=self._envelope.profile,
            alone=alone,
        )
        if not isinstance(other, Unavailable):
            self._dispatch(other)
        elif not (may_hold and self._hold()):
            self._fail(error, outcome)

    def _hold(self) -> bool:
        """Get in line again in a moment: an engine may be in the middle of a restart. Return
        False once that has taken as long as anybody waits for a slot."""
        now = self._parts.wheel.now
        if self._held_until is None:
            self._held_until = now + self._parts.deadlines.queue
        if now >= self._held_until:
            return False
        self._phase = Phase.HELD
        self._tried = ()
        self._connect_tries = 0
        self._client.deadline.set(self._within(RECONNECT_S))
        return True

    def _fail(self, error: RequestError, outcome: Outcome | None) -> None:
        """End with an error: a status while there is none yet, an event from then on."""
        if self._phase is Phase.OVER:
            return
        headers_of_reply = self._reply_headers()
        self._abandon()
        self._end(outcome, error.status)
        client, dialect = self._client, self._envelope.route.dialect
        if not self._committed:
            reply = replies.error_reply(error, dialect)
            client.write(
                client.head(
                    reply.status,
                    b"".join(b"%b: %b\r\n" % item for item in reply.headers) + headers_of_reply,
                    len(reply.body),
                )
                + reply.body
            )
            client.finish(ended=False)
        elif self._pieces and self._envelope.stream:
            client.write(client.piece(replies.error_event(error, dialect)))
            client.cut()
        else:
            client.cut()

    # -- the client's side -----------------------------------------------------------------

    def client_left(self) -> None:
        """The client's connection is gone: whatever was going on for it stops now."""
        if self._phase is Phase.OVER:
            return
        if self._ticket is not None:
            self._ticket.leave()
            self._ticket = None
        self._abandon()
        self._end(Outcome.CLIENT_LEFT, 499)

    def client_paused(self) -> None:
        """The client does not keep up: the engine must wait."""
        if self._connection is not None:
            self._connection.pause()
        if self._phase is Phase.ANSWERING:
            self._phase = Phase.STALLED
            self._client.deadline.set(self._within(self._parts.deadlines.client_stalled))

    def client_resumed(self) -> None:
        if self._connection is not None:
            self._connection.resume()
        if self._phase is Phase.STALLED:
            self._phase = Phase.ANSWERING
            self._client.deadline.set(self._within(self._parts.deadlines.between_chunks))

    def expired(self) -> None:
        """The deadline of this phase is over."""
        limits = self._parts.deadlines
        if self._parts.wheel.now >= self._whole_due:
            self._fail(
                timeouts.whole_request(limits),
                None if self._reservation is None else Outcome.CLIENT_LEFT,
            )
        elif self._phase is Phase.WAITING:
            self._client.write(
                self._stream_head() + self._client.piece(PINGS[self._envelope.route.dialect])
            )
            self._client.deadline.set(limits.hold_commit)
        elif self._phase is Phase.HELD:
            self._enter()
        elif self._phase is Phase.ASKED:
            self._abandon()
            self._try_again(
                Outcome.FIRST_BYTE_TIMEOUT, timeouts.first_byte(self._first_byte_limit())
            )
        elif self._phase is Phase.ANSWERING:
            self._fail(timeouts.between_chunks(limits), Outcome.IDLE_TIMEOUT)
        elif self._phase is Phase.STALLED:
            self.client_left()
            self._client.cut()

    # -- the end ---------------------------------------------------------------------------

    def _abandon(self) -> None:
        """Make the engine stop working for this request."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None

    def _release(self, outcome: Outcome) -> None:
        """Give the slot back and count how it was used."""
        reservation, self._reservation = self._reservation, None
        leg, self._leg = self._leg, None
        if reservation is not None:
            reservation.release(outcome)
            if outcome in SUSPICIOUS:
                self._parts.suspect(reservation.endpoint.id)
        if leg is not None:
            series = leg.series
            series.in_flight -= 1
            series.outcomes[outcome] = series.outcomes.get(outcome, 0) + 1

    def _end(self, outcome: Outcome | None, status: int) -> None:
        if self._phase is Phase.OVER:
            return
        self._phase = Phase.OVER
        self._client.deadline.due = NEVER
        parts, envelope = self._parts, self._envelope
        reservation, leg = self._reservation, self._leg
        endpoint = reservation.endpoint.id if reservation is not None else None
        duration_s = parts.clock.monotonic() - envelope.started
        first_s = None
        if self._first_token_at is not None:
            first_s = self._first_token_at - envelope.started
        usage = self._usage
        if leg is not None and outcome is not None:
            observe(leg.series, envelope.stream, usage, first_s, duration_s)
            self._release(outcome)
        elif outcome is None:
            parts.metrics.count_refused(envelope.target.name, status)
        parts.ended(
            Ending(
                envelope=envelope,
                endpoint=endpoint or (self._tried[-1] if self._tried else None),
                outcome=outcome,
                status=status,
                attempts=self._attempts,
                usage=usage,
                first_token_s=first_s,
                duration_s=duration_s,
            )
        )
