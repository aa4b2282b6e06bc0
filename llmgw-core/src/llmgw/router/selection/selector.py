"""Chooses and reserves in one step, and learns from how requests end.

Nothing here waits: on one event loop a choice and its reservation cannot be torn apart, so
that no endpoint ever has more requests than it may.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from llmgw.clock import Clock
from llmgw.config.server import RouterSettings
from llmgw.contracts.balancing import RoutedRequest
from llmgw.domain.endpoints import Endpoint, EndpointUsage
from llmgw.domain.ids import EndpointId, ModelName
from llmgw.domain.loads import EngineLoad
from llmgw.domain.roles import Role
from llmgw.domain.shares import RouterShares
from llmgw.logs import get_logger
from llmgw.router.selection.lines import Line
from llmgw.router.selection.profiles import Needs, Profiles
from llmgw.router.selection.quarantine import Quarantine
from llmgw.router.selection.reservation import FAILURES, NEITHER, Outcome, Reservation
from llmgw.router.selection.rules import ejection_s
from llmgw.router.selection.state import EndpointState, Moment
from llmgw.router.table import ModelRoute, Table, Unavailable, Why

log = get_logger(__name__)

_NOBODY: frozenset[EndpointId] = frozenset()
_RAMP_STEP_S = 1.0
_OK = Outcome.OK


class Selector:
    """The states of all endpoints, and the choice among them."""

    def __init__(self, settings: RouterSettings, profiles: Profiles, clock: Clock) -> None:
        self.on_room: Callable[[Iterable[ModelName]], None] = lambda _models: None
        """Called after anything that may let a waiting request of these models go."""
        self._settings = settings
        self._profiles = profiles
        self._default = profiles.by_name[profiles.default]
        self._clock = clock
        self._moment = Moment(clock.monotonic())
        self._states: dict[EndpointId, EndpointState] = {}
        self._halves: dict[ModelName, tuple[ModelRoute, ModelName]] = {}
        """Each half of each route by its own name, and the name of its model."""
        self._departed: list[EndpointState] = []
        self._lines: dict[ModelName, Line] = {}
        self._next_change = float("inf")
        self._shares = RouterShares()
        self._alone = 0  #: requests in flight that others are kept away from
        self.quarantine = Quarantine()

    @property
    def prompt_bytes(self) -> int:
        """How much of a prompt any of the routing profiles looks at."""
        return max(profile.needs.prompt_bytes for profile in self._profiles.by_name.values())

    # -- the table -------------------------------------------------------------------------

    def update(self, table: Table) -> None:
        """Take a new table. Endpoints that stay keep their counters; a restarted one begins anew.

        What the table before had, too, is not looked at again.
        """
        now = self._now()
        before = self._halves
        self._halves = {
            half.name: (half, route.name) for route in table.routes for half in route.halves
        }
        stale = [half for half, _ in before.values() if not self._has(half)]
        fresh = [
            (half, model)
            for half, model in self._halves.values()
            if half.name not in before or before[half.name][0] is not half
        ]
        left = {
            endpoint.id: self._states[endpoint.id] for half in stale for endpoint in half.endpoints
        }
        for half in stale:
            for endpoint in half.endpoints:
                left[endpoint.id].leave(half.name)
            if half.name not in self._halves:
                del self._lines[half.name]
        met: dict[EndpointId, EndpointState] = {}
        for half, model in fresh:
            line = self._lines.get(half.name)
            if line is None:
                line = self._lines[half.name] = Line(half.name, self._settings)
            for endpoint in half.endpoints:
                if endpoint.id not in met:
                    met[endpoint.id] = self._meet(endpoint, now, has_company=line.has_members)
                met[endpoint.id].join(half.name, model)
        gone = {id_: state for id_, state in left.items() if not state.lines}
        self._states.update(met)
        for id_ in gone.keys() - met.keys():
            del self._states[id_]
        self._departed = [state for state in (*self._departed, *gone.values()) if state.in_flight]
        for half, _ in fresh:
            members = tuple(met[endpoint.id] for endpoint in half.endpoints)
            self._lines[half.name].take(members)
        self._plan_next_change(now)
        models = dict.fromkeys(model for _, model in fresh)
        self.on_room([model for model in models if self._lines[model].has_ready])

    def _has(self, half: ModelRoute) -> bool:
        return half.name in self._halves and self._halves[half.name][0] is half

    def _meet(self, endpoint: Endpoint, now: float, *, has_company: bool) -> EndpointState:
        """Return the state of an endpoint as the table has it now."""
        state = self._states.get(endpoint.id)
        if state is None or not state.endpoint.is_same_process(endpoint):
            state = self._new_state(endpoint, now, has_company=has_company)
        state.endpoint = endpoint
        state.part = self._shares.of_endpoint(endpoint.id, endpoint.max_inflight)
        state.ramp(now, self._settings.ejection.slow_start)
        state.settle()
        return state

    def _new_state(self, endpoint: Endpoint, now: float, *, has_company: bool) -> EndpointState:
        fresh_s = max(5.0, 3 * self._settings.health.load_interval)
        state = EndpointState(endpoint, self._moment, load_fresh_s=fresh_s)
        if has_company:
            state.ramp_from = now
        return state

    def states(self) -> tuple[EndpointState, ...]:
        """Return the states of all endpoints in the table, to be read and not changed."""
        return tuple(self._states.values())

    def state(self, endpoint: EndpointId) -> EndpointState | None:
        return self._states.get(endpoint)

    def take_shares(self, shares: RouterShares) -> None:
        """Keep to these shares of the endpoints' limits."""
        before, self._shares = self._shares, shares
        if (before.routers, before.endpoints) == (shares.routers, shares.endpoints):
            return
        for state in self._states.values():
            part = shares.of_endpoint(state.endpoint.id, state.endpoint.max_inflight)
            if part != state.part:
                state.part = part
                state.settle()
                self.on_room(state.models)

    def wants(self, queued: Mapping[ModelName, int]) -> dict[EndpointId, int]:
        """Return how many requests each limited endpoint could have from here; idle ones left out.

        queued: how many wait for each model.
        """
        wants: dict[EndpointId, int] = {}
        for id_, state in self._states.items():
            if state.part is not None:
                waiting = sum(queued.get(name, 0) for name in state.models) if queued else 0
                if count := state.in_flight + waiting:
                    wants[id_] = min(count + -(-count // 4), state.endpoint.max_inflight or count)
        return wants

    def index_sizes(self) -> dict[tuple[ModelName, str], int]:
        """Return how many entries each model's prompt index holds, by model and profile."""
        return {
            (name, profile): size
            for name, line in self._lines.items()
            for profile, size in line.index_sizes()
        }

    def usage(self) -> dict[EndpointId, EndpointUsage]:
        """Return how idle each endpoint is. Requests of a former life still count as in flight."""
        now = self._now()
        found = {id_: _usage(state, state.in_flight, now) for id_, state in self._states.items()}
        for former in self._departed:
            id_ = former.endpoint.id
            state, others = self._states.get(id_, former), found.get(id_)
            count = former.in_flight + (others.in_flight if others is not None else 0)
            found[id_] = _usage(state, count, now)
        return found

    # -- one request -----------------------------------------------------------------------

    def needs(self, route: ModelRoute, profile: str | None = None) -> Needs:
        """Return what `reserve` wants to know of a request to this model."""
        found = self._profiles.by_name.get(profile or route.routing or "")
        return (found or self._default).needs

    def require_profile(self, name: str) -> None:
        """Raise RequestError if no routing profile has this name: a client has asked for it."""
        self._profiles.require(name)

    def reserve(
        self,
        route: ModelRoute,
        request: RoutedRequest,
        *,
        exclude: frozenset[EndpointId] = _NOBODY,
        profile: str | None = None,
        is_half: bool = False,
    ) -> Reservation | Unavailable:
        """Choose an endpoint and take one of its slots.

        exclude: endpoints that this request has tried. profile: of the request; None: the
        model's. A suspect goes where its like runs, and only there: two engines may die of it.
        The first one goes where nothing is in flight, and others are kept away from there, both
        as far as there is a choice. Where prompts are computed apart, two slots are taken or none,
        but for is_half: then this route's alone.
        """
        if route.prefill is not None and not is_half:
            return self._reserve_pair(route, route.prefill, request, exclude, profile)
        now = self._moment.now = self._clock.monotonic()
        if now >= self._next_change:
            self.advance(now)
        line = self._lines.get(route.name)
        if line is None:
            return Unavailable(Why.NO_ENDPOINT)
        choice = line.asked.get(profile)
        if choice is None:
            choice = line.choice(profile, self._profiles.find(profile or route.routing))
        suspect = request.suspect
        company = self._company(suspect, route, is_half=is_half) if suspect else ()
        usable = choice.usable(line.in_panic, exclude, company)
        if not usable:
            return Unavailable(Why.HELD_BACK if company else choice.why_none(exclude))
        if not company:
            if suspect:
                usable = [state for state in usable if not state.in_flight] or usable
            if self._alone:
                usable = [state for state in usable if not state.one_alone] or usable
        try:
            state = usable[choice.balancer.choose(request, usable)]
        except Exception:
            # Of a plugin; and what led here may be the end of another request, which goes on.
            choice.note_failure()
            state = min(usable, key=lambda state: (state.in_flight + 1) / state.share)
        tokens = request.body_bytes >> 2
        is_trial = state.half_open or state.ejected_until is not None
        reservation = Reservation(
            self, state, choice, len(usable), tokens, is_trial, state.in_flight
        )
        if choice.matcher is not None:
            reservation.match = choice.matcher.match
        if suspect:
            self.keep_alone(reservation, suspect)
        if state.half_open and state.probe is None:
            state.probe = reservation
            state.settle()
        state.in_flight += 1
        state.tokens_in_flight += tokens
        if tokens > state.largest_prompt:
            state.largest_prompt = tokens
        if not exclude:
            line.budget.count_request(now)
        return reservation

    def _reserve_pair(
        self,
        route: ModelRoute,
        prefill: ModelRoute,
        request: RoutedRequest,
        exclude: frozenset[EndpointId],
        profile: str | None,
    ) -> Reservation | Unavailable:
        first = self.reserve(prefill, request, exclude=exclude, profile=profile, is_half=True)
        if isinstance(first, Unavailable):
            # Replicas of whole requests need no other; there are some while roles come into use.
            exclude |= {item.id for item in route.endpoints if item.role is not None}
        got = self.reserve(route, request, exclude=exclude, profile=profile, is_half=True)
        if isinstance(first, Unavailable):
            return Unavailable(first.why, Role.PREFILL) if isinstance(got, Unavailable) else got
        if isinstance(got, Unavailable):
            self._put_back(first)
            return Unavailable(got.why, Role.DECODE)
        if got.endpoint.role is None:
            self._put_back(first)
        else:
            got.take_prompt_from(first)
        return got

    def _put_back(self, reservation: Reservation) -> None:
        """Undo a reservation in the step that made it: there is no room that was not there before,
        and whoever waits for some may be the one who asks."""
        told, self.on_room = self.on_room, lambda _models: None
        reservation.undo()
        self.on_room = told

    def _company(
        self, suspect: bytes, route: ModelRoute, *, is_half: bool
    ) -> Collection[EndpointState]:
        """Return where the like of a suspect runs; of a pair, only what has this route's role."""
        company = self.quarantine.company(suspect)
        return [item for item in company if route.name in item.lines] if is_half else company

    def keep_alone(self, reservation: Reservation, suspect: bytes) -> None:
        """Keep others away from this request until it ends, and its like with it.

        suspect: its fingerprint.
        """
        if not reservation.suspect and reservation.is_held:
            reservation.suspect = suspect
            reservation.state.one_alone += 1
            self._alone += 1
            self.quarantine.began(suspect, reservation.state)

    def may_retry(self, route: ModelRoute) -> bool:
        """Say whether the model's retry budget allows one more, and take it."""
        line = self._lines.get(route.name)
        return line is not None and line.budget.take(self._now())

    def ended(self, reservation: Reservation, outcome: Outcome) -> None:
        """Learn from a request that has given its slot back. For `Reservation` only."""
        state = reservation.state
        state.last_end = now = self._moment.now = self._clock.monotonic()
        if reservation.suspect:
            state.one_alone -= 1
            self._alone -= 1
            is_whole = state.endpoint.role is not Role.PREFILL
            is_answered = outcome is _OK and is_whole
            self.quarantine.ended(reservation.suspect, state, is_answered=is_answered)
        if outcome is _OK and not reservation.is_trial:  # nearly always
            state.failures = 0
        elif outcome in FAILURES:
            self._failed(state, now, is_trial=reservation.is_trial)
        elif outcome not in NEITHER:
            if outcome is not Outcome.ENGINE_BUSY:  # full, so alive, but it has proven no more
                state.failures = 0
            if reservation.is_trial:
                self.restore(state)
        if state.probe is reservation:
            state.probe = None
            state.settle()
        self.on_room(state.models)

    # -- leaving out and taking back ---------------------------------------------------------

    def restore(self, state: EndpointState) -> None:
        """Use an ejected endpoint again, slowly at first."""
        if not state.is_ejected:
            return
        state.ejected_until = None
        state.half_open = False
        state.probe = None
        state.failures = 0
        self._warm_up(state)
        log.info("endpoint back in use", endpoint=state.endpoint.id)

    def _failed(self, state: EndpointState, now: float, *, is_trial: bool) -> None:
        state.failures += 1
        if state.half_open:
            if is_trial:
                self._eject(state, now)
        elif state.ejected_until is None and (
            state.failures >= self._settings.ejection.failures
            and all(self._lines[name].may_lose_one() for name in state.lines if name in self._lines)
        ):
            self._eject(state, now)

    def _eject(self, state: EndpointState, now: float) -> None:
        settings = self._settings.ejection
        state.ejections += 1
        for_s = ejection_s(state.ejections, base_s=settings.base, cap_s=settings.cap)
        state.ejected_until = now + for_s
        state.half_open = False
        state.probe = None
        self._changed(state)
        self._next_change = min(self._next_change, state.ejected_until)
        log.warning(
            "endpoint left out", endpoint=state.endpoint.id, failures=state.failures, for_s=for_s
        )

    def set_answering(
        self, state: EndpointState, answering: bool, *, is_gone: bool = False
    ) -> None:
        """Take what the health checks found.

        is_gone: its address refuses connections. In a panic our checks are doubted and every
        ready endpoint is used, but that needs no doubt: requests wait for it rather.
        """
        if (state.is_answering, state.is_gone) != (answering, is_gone):
            state.is_answering = answering
            state.is_gone = is_gone
            if answering:
                self._warm_up(state)
                self.on_room(state.models)
            else:
                self._changed(state)

    def set_stuck(self, state: EndpointState, stuck: bool) -> None:
        """Take what the progress watchdog found."""
        if state.is_stuck != stuck:
            state.is_stuck = stuck
            if stuck:
                self._changed(state)
            else:
                self._warm_up(state)
                self.on_room(state.models)

    def set_load(self, state: EndpointState, load: EngineLoad | None) -> None:
        """Take a reading of its metrics page; None: the page said nothing."""
        state.read(load, self._now())

    def wants_load(self, state: EndpointState) -> bool:
        """Say whether a balancer looks at what this endpoint's engine says of itself."""
        return any(
            line.wants_load for name in state.lines if (line := self._lines.get(name)) is not None
        )

    def restarted(self, state: EndpointState) -> None:
        """The process behind an endpoint is a new one, though nobody has said so: its caches are
        empty. For static endpoints, whose incarnation never changes."""
        for name in state.lines:
            if line := self._lines.get(name):
                line.forget(state.endpoint.id)

    def advance(self, now: float) -> None:
        """Do what is due: end ejections, raise shares. Called by `reserve` and once a second."""
        self._moment.now = now
        freed: list[EndpointState] = []
        for state in self._states.values():
            if state.ejected_until is not None and now >= state.ejected_until:
                state.ejected_until = None
                state.half_open = True
                state.settle()
                freed.append(state)
            if state.ramp_from is not None:
                state.ramp(now, self._settings.ejection.slow_start)
        self._plan_next_change(now)
        for state in freed:
            self.on_room(state.models)

    def _warm_up(self, state: EndpointState) -> None:
        now = self._now()
        state.ramp_from = now
        state.ramp(now, self._settings.ejection.slow_start)
        self._next_change = min(self._next_change, now + _RAMP_STEP_S)
        self._changed(state)

    def _changed(self, state: EndpointState) -> None:
        state.settle()
        for name in state.lines:
            if line := self._lines.get(name):
                line.settle()

    def _plan_next_change(self, now: float) -> None:
        times = [
            state.ejected_until
            for state in self._states.values()
            if state.ejected_until is not None
        ]
        if any(state.ramp_from is not None for state in self._states.values()):
            times.append(now + _RAMP_STEP_S)
        self._next_change = min(times, default=float("inf"))

    def _now(self) -> float:
        now = self._moment.now = self._clock.monotonic()
        return now


def _usage(state: EndpointState, in_flight: int, now: float) -> EndpointUsage:
    idle_s = state.last_end
    if in_flight:
        idle_s = 0.0
    elif idle_s is not None:
        idle_s = max(0.0, now - idle_s)
    return EndpointUsage(idle_s=idle_s, in_flight=in_flight)
