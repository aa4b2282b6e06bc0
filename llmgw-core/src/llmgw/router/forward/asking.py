"""How a request comes by an endpoint: a slot, a connection, perhaps a second try."""

from __future__ import annotations

from llmgw.domain.endpoints import Endpoint, ModelState
from llmgw.errors import RequestError
from llmgw.router.forward import timeouts
from llmgw.router.forward.edits import body_for_engine
from llmgw.router.forward.heads import request_head
from llmgw.router.forward.holding import Holding
from llmgw.router.forward.legs import Leg
from llmgw.router.forward.pairing import Owner, Pair
from llmgw.router.forward.phases import CONNECT_TRIES, RECONNECT_S, TRIES, Phase
from llmgw.router.pool import EngineConnection, EngineExchange, Unreachable
from llmgw.router.selection import Outcome, Reservation
from llmgw.router.table import Unavailable
from llmgw.router.timers import NEVER


class Asking(Holding, EngineExchange, Owner):
    """The middle layer: it asks, and asks somebody else where that does no harm."""

    __slots__ = ()

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
        endpoint = reservation.state.endpoint
        self._reservation = reservation
        self._attempts += 1
        self._leg = leg = parts.legs.find(endpoint, self._envelope)
        leg.series.in_flight += 1
        self._phase = Phase.ASKED
        if reservation.prefill is not None and not self._asks_prefill(reservation.prefill):
            return
        connection = parts.pool.take(endpoint)
        if connection is not None:
            self._send(connection, leg)
        else:
            self._open(endpoint)

    def _asks_prefill(self, prefill: Reservation) -> bool:
        """Have the prompt computed. Return whether the decode engine is to be asked meanwhile."""
        limit_s = self._first_byte_limit()
        self._pair = Pair(self._parts, self._envelope, prefill, self)
        # Of a plain request as well: its answer may take as long as it takes, but not its prompt.
        self._client.deadline.set(self._within(limit_s))
        try:
            return self._pair.begin(limit_s)
        except RequestError as error:
            is_client = error.status < 500
            self._fail(error, Outcome.CLIENT_ERROR if is_client else Outcome.PARTNER_FAILED)
            return False

    def prompt_computed(self) -> None:
        reservation, leg = self._reservation, self._leg
        if reservation is None or leg is None:
            return
        connection = self._parts.pool.take(reservation.endpoint)
        if connection is not None:
            self._send(connection, leg)
        else:
            self._open(reservation.endpoint)

    def prompt_unreachable(self, why: Unreachable) -> None:
        self._abandon()
        self._unreachable(why)

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
        deadline, pair = self._client.deadline, self._pair
        if pair is not None:
            body = pair.body_for_decode(body)
        if envelope.stream:
            limit_s = self._first_byte_limit() if pair is None else pair.due - parts.wheel.now
            deadline.set(self._within(limit_s))
        elif self._whole_due < NEVER:
            deadline.set(self._whole_due - parts.wheel.now)
        else:
            # A plain answer may take as long as it takes; its client is watched instead.
            deadline.due = NEVER
        connection.send(self, request_head(leg.head, envelope, len(body)), body)

    def _first_byte_limit(self) -> float:
        body_bytes = self._envelope.routed.body_bytes
        return timeouts.first_byte_limit_s(self._parts.deadlines, body_bytes)

    # -- a second try ----------------------------------------------------------------------

    def _try_again(self, outcome: Outcome, error: RequestError, *, may_hold: bool = False) -> None:
        """Ask another endpoint, if rules and budget allow; else tell the client of the error.

        may_hold: the endpoint may come back while we wait.
        """
        parts = self._parts
        # An engine that put an error into its stream may still be talking: whatever else it
        # says must not mix with the next one's answer.
        self._abandon()
        self._answer = None
        leg = self._leg
        if self._pair is not None and self._pair.failed:
            leg = self._pair.leg
        if leg is not None:
            self._tried = (*self._tried, leg.endpoint.id)
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
        if leg is not None:
            leg.series.retries += 1
        self._release(outcome)
        other = parts.selector.reserve(
            self._envelope.target,
            self._envelope.routed,
            exclude=frozenset(self._tried),
            profile=self._envelope.profile,
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
