"""Whether an engine that cut requests off has died, and what that means for those like them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from llmgw.clock import Clock
from llmgw.router.pool import ConnectionPool, EngineConnection, Unreachable
from llmgw.router.selection import EndpointState, Reservation, Selector
from llmgw.router.selection.state import Death

_ONE_DEATH_S = 1.0
"""Connections to a process that dies break within this time, and no other is in its place, has
been asked and has died as well."""


class InFlight(Protocol):
    """A request that is being answered, as far as it may be a copy of a suspect."""

    @property
    def engine(self) -> EndpointState | None:
        """Who works on it; None: nobody yet."""
        ...

    @property
    def body_bytes(self) -> int: ...

    def fingerprint(self) -> bytes: ...

    def recognised(self, fingerprint: bytes) -> None:
        """It is a copy of a request that an engine has died of, or two."""
        ...


class Examination:
    """One request that waits for the verdict on its engine."""

    __slots__ = ("body_bytes", "fingerprint", "verdict")

    def __init__(
        self, fingerprint: bytes, body_bytes: int, verdict: Callable[[int], None] | None
    ) -> None:
        self.fingerprint = fingerprint
        self.body_bytes = body_bytes
        self.verdict = verdict

    def cancel(self) -> None:
        """Nobody waits any more. A death still counts against the request."""
        self.verdict = None


class Deaths:
    """Looks at engines that cut requests off: one look, however many requests it was."""

    def __init__(
        self,
        pool: ConnectionPool,
        selector: Selector,
        clock: Clock,
        in_flight: Callable[[], Iterable[InFlight]],
    ) -> None:
        self._pool = pool
        self._selector = selector
        self._clock = clock
        self._in_flight = in_flight
        self._waiting: dict[EndpointState, list[Examination]] = {}

    def examine(
        self,
        reservation: Reservation,
        fingerprint: bytes,
        body_bytes: int,
        verdict: Callable[[int], None] | None,
    ) -> Examination:
        """Find out whether the engine of a request has died, by connecting to it.

        A connection that breaks is no death: an engine that is there, in the same incarnation, has
        only hung up. verdict: called later with the deaths of that request so far; 0 if the engine
        lives.
        """
        examination = Examination(fingerprint, body_bytes, verdict)
        state = reservation.state
        if state in self._waiting:
            self._waiting[state].append(examination)
        else:
            self._waiting[state] = [examination]
            self._pool.open(
                state.endpoint, partial(self._there, state), partial(self._unreachable, state)
            )
        return examination

    def _there(self, state: EndpointState, connection: EngineConnection) -> None:
        connection.close()
        self._judge(state, is_away=False)

    def _unreachable(self, state: EndpointState, why: Unreachable) -> None:
        self._judge(state, is_away=why.is_away)

    def _judge(self, state: EndpointState, *, is_away: bool) -> None:
        examined = self._waiting.pop(state)
        now = self._selector.state(state.endpoint.id)
        # One that was told to go has not died of anything.
        was_stopped = now is None or now.endpoint.draining
        is_another = now is not None and now is not state
        counts = [0] * len(examined)
        if is_another or (is_away and not was_stopped):
            death = self._death_of(state)
            quarantine = self._selector.quarantine
            counts = [quarantine.died(item.fingerprint, death) for item in examined]
            self._warn_copies(state, examined)
        for item, count in zip(examined, counts, strict=True):
            if item.verdict is not None:
                item.verdict(count)

    def _death_of(self, state: EndpointState) -> Death:
        now = self._clock.monotonic()
        if state.death is None or now - state.death.at > _ONE_DEATH_S:
            state.death = Death(now)
        return state.death

    def _warn_copies(self, dead: EndpointState, examined: list[Examination]) -> None:
        """Tell the copies that other engines work on: they may be about to die as well."""
        known = {item.fingerprint for item in examined}
        sizes = {item.body_bytes for item in examined}
        for request in self._in_flight():
            if request.engine is not dead and request.body_bytes in sizes:
                fingerprint = request.fingerprint()
                if fingerprint in known:
                    request.recognised(fingerprint)
