"""What a request has in its hands while it is answered, and its one way out.

Every way out passes `_end`, once, so that no slot and no counter leaks.
"""

from __future__ import annotations

import zlib

from llmgw.domain.ids import EndpointId
from llmgw.errors import RequestError
from llmgw.router import replies
from llmgw.router.admission import Ticket
from llmgw.router.forward.accounting import observe
from llmgw.router.forward.answers import Answer, Renaming
from llmgw.router.forward.client import Client
from llmgw.router.forward.deaths import Examination
from llmgw.router.forward.envelope import Envelope
from llmgw.router.forward.heads import SSE_HEADERS
from llmgw.router.forward.legs import Leg
from llmgw.router.forward.pairing import Pair
from llmgw.router.forward.parts import Ending, ForwardParts
from llmgw.router.forward.phases import EVENT_STREAM, SUSPICIOUS, Phase
from llmgw.router.pool import EngineConnection, Opening
from llmgw.router.routes import Assembly
from llmgw.router.selection import Outcome, Reservation
from llmgw.router.sse import Usage
from llmgw.router.timers import NEVER


class Holding:
    """The state of one request between the two sockets. Lowest of the three layers of an
    exchange: it can only let go."""

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
        "_pair",
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
        self._opening: Opening | Examination | None = None
        self._connection: EngineConnection | None = None
        self._pair: Pair | None = None  #: the engine that computes the prompt, if it is another
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

    # -- what the client is told -----------------------------------------------------------

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
            leg.origin if self._pair is None else self._pair.origin(leg),
            self._attempts,
        )
        if self._envelope.wants_reasons:
            headers += b"x-llmgw-explain: %b\r\n" % reservation.because.encode("ascii", "replace")
        return headers

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
            headers = b"".join(b"%b: %b\r\n" % item for item in reply.headers)
            client.write_whole(reply.status, headers + headers_of_reply, reply.body)
            client.finish(ended=False)
        elif self._pieces and self._envelope.stream:
            client.write(client.piece(replies.error_event(error, dialect)))
            client.cut()
        else:
            client.cut()

    # -- letting go ------------------------------------------------------------------------

    def _abandon(self) -> None:
        """Make the engine stop working for this request."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None
        if self._pair is not None:
            self._pair.abandon()

    def _release(self, outcome: Outcome) -> None:
        """Give the slot back and count how it was used."""
        reservation, self._reservation = self._reservation, None
        leg, self._leg = self._leg, None
        if self._pair is not None:
            pair, self._pair = self._pair, None
            fared = pair.release(outcome)
            if reservation is not None:
                reservation.release(fared)
            if outcome is not Outcome.CLIENT_ERROR:  # which is the client's, whoever found it
                outcome = fared
        elif reservation is not None:
            reservation.release(outcome)
        if reservation is not None and outcome in SUSPICIOUS:
            self._parts.suspect(reservation.endpoint.id)
        if leg is not None:
            series = leg.series
            series.in_flight -= 1
            series.outcomes[outcome] = series.outcomes.get(outcome, 0) + 1

    def _end(self, outcome: Outcome | None, status: int) -> None:
        if self._phase is Phase.OVER:
            return
        self._phase = Phase.OVER
        self._answer = None  # which knows us: together they would wait for the collector
        self._client.deadline.due = NEVER
        parts, envelope = self._parts, self._envelope
        reservation, leg = self._reservation, self._leg
        endpoint = reservation.state.endpoint.id if reservation is not None else None
        duration_s = parts.clock.monotonic() - envelope.started
        first_s = None
        if self._first_token_at is not None:
            first_s = self._first_token_at - envelope.started
        usage = self._usage
        prefill = "" if self._pair is None else self._pair.asked
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
                prefill=prefill,
            )
        )

    def _within(self, limit_s: float) -> float:
        return min(limit_s, self._whole_due - self._parts.wheel.now)
