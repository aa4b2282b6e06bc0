"""One request from its envelope to its end: a slot, an engine, an answer, perhaps a second try.

Driven by callbacks of the two sockets and of one deadline; there is no task per request and
no await per chunk. Three layers, each a file: what it holds and how that ends (`holding`), how
it comes by an endpoint (`asking`), and here what the two sockets and the clock have to say.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

import msgspec

from llmgw.errors import RequestError
from llmgw.router import replies
from llmgw.router.forward import timeouts
from llmgw.router.forward.answers import (
    AssembledAnswer,
    PlainAnswer,
    RefusedAnswer,
    StreamAnswer,
)
from llmgw.router.forward.asking import Asking
from llmgw.router.forward.deaths import Examination
from llmgw.router.forward.heads import passed_headers, retry_after_s
from llmgw.router.forward.phases import OUTCOME_OF, PINGS, Phase
from llmgw.router.forward.poison import fingerprint_of, quarantined, sample_of
from llmgw.router.pool import AnswerHead, EngineFailure
from llmgw.router.selection import EndpointState, Outcome, Reservation
from llmgw.router.sse import Usage, read_usage
from llmgw.router.timers import NEVER

_INFLATED_BYTES = 16 * 1024 * 1024
"""Of one read, which brings a hundredth of that at most: no answer was ever packed so well."""


class Exchange(Asking):
    """Implements `EngineExchange` towards the pool and `AnswerTarget` towards answers."""

    __slots__ = ()

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
                data = self._inflate.decompress(data, _INFLATED_BYTES)
            except zlib.error:
                self.engine_vanished()
                return
            if self._inflate.unconsumed_tail:
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

    def answer_whole(self, head: AnswerHead, body: bytes) -> None:
        if self._phase is Phase.OVER or self._assembles is not None or not head.is_json:
            super().answer_whole(head, body)
            return
        self._connection = None
        self._usage = read_usage(body)
        if self.renaming is not None:
            body = self.renaming.apply(body)
        self.show_whole(head, body)

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
            self._examine(reservation, None)
            self._fail(error, outcome)
        else:
            # Whether and how to go on depends on whether the engine has died of it.
            self._client.deadline.due = NEVER  # the pool has its own limit
            self._opening = self._examine(reservation, partial(self._examined, error))

    def _examine(
        self, reservation: Reservation, verdict: Callable[[int], None] | None
    ) -> Examination:
        return self._parts.deaths.examine(reservation, self.fingerprint(), self.body_bytes, verdict)

    def _examined(self, error: RequestError, deaths: int) -> None:
        self._opening = None
        if deaths > 1:
            self._fail(quarantined(), Outcome.RESET)
            return
        if deaths:
            self._suspect(self.fingerprint())
        self._try_again(Outcome.RESET, error)

    def prompt_lost(self, outcome: Outcome, error: RequestError) -> None:
        self._abandon()
        if outcome is not Outcome.RESET or self._pair is None:
            self._try_again(outcome, error)
        else:
            self._client.deadline.due = NEVER  # the pool has its own limit
            verdict = partial(self._examined, error)
            self._opening = self._examine(self._pair.reservation, verdict)

    def prompt_refused(self, status: int, body: bytes, retry_after: bytes | None) -> None:
        if status == 200 or (status >= 500 and status != 503):
            # Nothing of its answer is for the client, so that another try can do no harm.
            self._try_again(Outcome.ENGINE_ERROR, replies.read_engine_error(status, body))
        else:
            self.engine_refused(status, body, retry_after)

    def _suspect(self, fingerprint: bytes) -> None:
        envelope = self._envelope
        envelope.routed = msgspec.structs.replace(envelope.routed, suspect=fingerprint)

    # -- as a copy of a request that an engine has died of -----------------------------------

    @property
    def engine(self) -> EndpointState | None:
        if self._pair is not None and not self._pair.is_done:
            return self._pair.reservation.state
        return None if self._reservation is None else self._reservation.state

    @property
    def body_bytes(self) -> int:
        return self._envelope.routed.body_bytes

    def fingerprint(self) -> bytes:
        sample = self._sample if self._sample is not None else sample_of(self._envelope.body)
        return fingerprint_of(self._envelope.route.path, sample)

    def recognised(self, fingerprint: bytes) -> None:
        parts = self._parts
        if parts.selector.quarantine.refuses(fingerprint, parts.clock.monotonic()):
            if self._ticket is not None:
                self._ticket.leave()
                self._ticket = None
            # Its engine has done nothing wrong, and may yet be saved.
            self._fail(quarantined(), None if self._leg is None else Outcome.CLIENT_LEFT)
            return
        self._suspect(fingerprint)
        if self._reservation is not None:
            parts.selector.keep_alone(self._reservation, fingerprint)
            if self._pair is not None:
                parts.selector.keep_alone(self._pair.reservation, fingerprint)
        elif self._ticket is not None:
            self._ticket.request = self._envelope.routed

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
        shown = head.shown if head.shown is not None else passed_headers(head)
        client.write_whole(head.status, shown + self._reply_headers(), body)
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
            if self._pair is not None:
                self._pair.blame()
            self._try_again(
                Outcome.FIRST_BYTE_TIMEOUT, timeouts.first_byte(self._first_byte_limit())
            )
        elif self._phase is Phase.ANSWERING:
            self._fail(timeouts.between_chunks(limits), Outcome.IDLE_TIMEOUT)
        elif self._phase is Phase.STALLED:
            self.client_left()
            self._client.cut()
