"""Holds requests that cannot go yet, and lets them go in a fair order.

Everything happens in the caller's turn on the event loop; nothing waits here. A request that
can go at once is called back from within `enter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from llmgw.clock import Clock
from llmgw.config.server import RouterSettings
from llmgw.contracts.balancing import RoutedRequest
from llmgw.contracts.sinks import Nudge
from llmgw.domain.endpoints import ModelState
from llmgw.domain.ids import ModelName
from llmgw.errors import RequestError
from llmgw.router.admission import refusals
from llmgw.router.admission.line import HasKey, ModelLine, Ticket
from llmgw.router.admission.pace import Pace
from llmgw.router.keys import invalid_key
from llmgw.router.table import ModelRoute, Table, Unavailable, Why

_RENUDGE_S = 30.0
"""While somebody waits, the control plane is asked again: it may have been restarted since."""

_HELD_BACK_S = 5.0
"""How soon a suspect may ask again: about as long as an answer takes, or a death."""

_WAKES = (ModelState.ASLEEP, ModelState.WAKING)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Reserve(Protocol[R_co]):
    """`Selector.reserve`, as admission needs it."""

    def __call__(
        self, route: ModelRoute, request: RoutedRequest, *, profile: str | None
    ) -> R_co | Unavailable: ...


class Admission(Generic[R]):
    """The waiting lines of all models.

    Call `room` whenever a slot or an endpoint has become free, `refresh` after each new table
    and `tick` a few times a second.
    """

    def __init__(self, settings: RouterSettings, reserve: Reserve[R], clock: Clock) -> None:
        self.nudges: Nudge | None = None  #: who wakes models; set by the server's wiring
        self._reserve = reserve
        self._clock = clock
        self._length = settings.queue.length
        self._slot_wait_s = settings.deadlines.queue
        self._wake_wait_s = settings.deadlines.wake_wait
        names = settings.queue.classes or ("normal",)
        self._priorities = {name: rank for rank, name in enumerate(names)}
        self.usual = self._priorities.get("normal", len(names) // 2)
        """The rank of a request that names no class."""
        self._lines: dict[ModelName, ModelLine[R]] = {}
        self._paces: dict[ModelName, Pace] = {}
        self._cold_since: dict[ModelName, float] = {}  #: models without any endpoint up

    def priority(self, name: str | None) -> int:
        """Return the rank of a class, 0 the most urgent; an unknown name means the usual one."""
        return self._priorities.get(name, self.usual) if name else self.usual

    def queued(self) -> dict[ModelName, int]:
        """Return how many requests wait, by canonical name; models without any are left out."""
        return {name: line.count for name, line in self._lines.items() if line.count}

    def at_once(
        self, route: ModelRoute, request: RoutedRequest, *, priority: int, profile: str | None
    ) -> R | None:
        """Return a slot if there is one and nobody waits whom this request must not overtake.

        None: it has to `enter`.
        """
        line = self._lines.get(route.name)
        if route.name in self._cold_since or (line and line.is_behind(profile, priority)):
            return None
        got = self._reserve(route, request, profile=profile)
        return None if isinstance(got, Unavailable) else got

    def enter(
        self,
        route: ModelRoute,
        request: RoutedRequest,
        *,
        grant: HasKey | None,
        priority: int,
        on_ready: Callable[[R], None],
        on_refused: Callable[[RequestError], None],
        profile: str | None = None,
    ) -> Ticket[R]:
        """Let a request go, wait or be refused; exactly one of the callbacks comes, once.

        It may come before this returns, or never after `leave` of the returned ticket.
        priority: from `priority()`.
        """
        now = self._clock.monotonic()
        ticket = Ticket(
            request,
            grant=grant,
            priority=priority,
            profile=profile,
            entered=now,
            on_ready=on_ready,
            on_refused=on_refused,
        )
        line = self._lines.get(route.name)
        if line is None or not line.is_behind(profile, priority):
            got = self._reserve(route, request, profile=profile)
            if not isinstance(got, Unavailable):
                self._found(route.name, up=True, now=now)
                on_ready(got)
                return ticket
            self._found(route.name, up=got.why is not Why.NO_ENDPOINT, now=now)
            if got.why is Why.HELD_BACK:
                on_refused(refusals.held_back(route, retry_after_s=_HELD_BACK_S))
                return ticket
        if (error := self._hopeless(route, now)) is not None:
            on_refused(error)
            return ticket
        if line is None:
            line = ModelLine(route, classes=len(self._priorities), now=now)
            self._lines[route.name] = line
        victim = None
        if line.count >= self._length:
            victim = line.newest_below(priority)
            if victim is None:
                on_refused(self._too_late(line, ticket, now))
                return ticket
            line.remove(victim)
        line.push(ticket)
        self._nudge(line, now)
        if victim is not None:
            retry_after_s = self._pace(route).drain_s(line.count)
            victim.on_refused(refusals.outranked(route, retry_after_s=retry_after_s))
        return ticket

    def room(self, models: Iterable[ModelName]) -> None:
        """Serve those who wait for these models, as far as there is room."""
        if self._lines or self._cold_since:
            now = self._clock.monotonic()
            for name in models:
                self._found(name, up=True, now=now)
                if (line := self._lines.get(name)) is not None and line.count:
                    self._serve(line)

    def refresh(self, table: Table) -> None:
        """Take a new table, which the selector has already: withdrawn models' requests end."""
        for name, line in tuple(self._lines.items()):
            route = table.find(name)
            if route is None:
                for ticket in line.waiting():
                    self._refuse(line, ticket, refusals.withdrawn(name))
            else:
                line.route = route
                self._serve(line)
                if (error := self._unplaceable(route)) is not None:
                    for ticket in line.waiting():
                        self._refuse(line, ticket, error)
        for known in (self._paces, self._cold_since):
            for name in [name for name in known if table.find(name) is None]:
                del known[name]

    def tick(self) -> None:
        """Refuse those who have waited too long, and ask again for models that still sleep."""
        now = self._clock.monotonic()
        for name, line in tuple(self._lines.items()):
            while (ticket := line.oldest()) is not None and now >= self._due(line, ticket):
                self._refuse(line, ticket, self._too_late(line, ticket, now))
            if line.count:
                self._nudge(line, now)
            elif not line.is_serving:
                del self._lines[name]

    def check_keys(self) -> None:
        """Refuse those whose keys have been revoked while they wait."""
        for line in tuple(self._lines.values()):
            for ticket in line.waiting():
                if not ticket.has_valid_key:
                    self._refuse(line, ticket, invalid_key())

    def refuse_all(self) -> None:
        """Refuse everybody who waits: the router is about to end."""
        for line in tuple(self._lines.values()):
            for ticket in line.waiting():
                self._refuse(line, ticket, refusals.ending())

    def _serve(self, line: ModelLine[R]) -> None:
        # A callback may give its slot back at once, which leads here again from within. The
        # outer call goes on then: two loops over one line would serve out of order.
        if line.is_serving:
            line.must_serve_again = True
            return
        line.is_serving = True
        try:
            line.must_serve_again = True
            while line.must_serve_again:
                line.must_serve_again = False
                for lane in tuple(line.lanes.values()):
                    while (ticket := line.head(lane)) is not None and self._serve_one(line, ticket):
                        pass
        finally:
            line.is_serving = False

    def _serve_one(self, line: ModelLine[R], ticket: Ticket[R]) -> bool:
        if not ticket.has_valid_key:
            self._refuse(line, ticket, invalid_key())
            return True
        now = self._clock.monotonic()
        got = self._reserve(line.route, ticket.request, profile=ticket.profile)
        if isinstance(got, Unavailable):
            self._found(line.route.name, up=got.why is not Why.NO_ENDPOINT, now=now)
            if got.why is Why.HELD_BACK:
                # Whoever is behind it must not wait for what only it is waiting for.
                self._refuse(
                    line, ticket, refusals.held_back(line.route, retry_after_s=_HELD_BACK_S)
                )
                return True
            return False
        self._found(line.route.name, up=True, now=now)
        line.take(ticket)
        self._pace(line.route).served(now, still_waiting=line.count > 0)
        ticket.on_ready(got)
        return True

    def _found(self, name: ModelName, *, up: bool, now: float) -> None:
        """Note whether any endpoint of a model is up."""
        if not up:
            self._cold_since.setdefault(name, now)
        elif self._cold_since and (since := self._cold_since.pop(name, None)) is not None:
            line = self._lines.get(name)
            if line is not None and line.count:
                line.warm_since = now
                self._pace(line.route).woke(now - since)

    def _is_held(self, route: ModelRoute) -> bool:
        """Say whether the wait is for a model to wake, not for a slot."""
        return route.name in self._cold_since and route.state in _WAKES

    def _hopeless(self, route: ModelRoute, now: float) -> RequestError | None:
        """Return why waiting would be in vain; None if it may help."""
        if (error := self._unplaceable(route)) is not None:
            return error
        # An engine that is being restarted is waited for. One that has been away for longer
        # than anybody waits for a slot is not: requests would only pile up.
        since = self._cold_since.get(route.name)
        if since is None or self._is_held(route) or now - since < self._slot_wait_s:
            return None
        wake_s = self._pace(route).wake_s(route.expected_wait_s)
        return refusals.no_endpoint(route, waited_s=0.0, retry_after_s=wake_s)

    def _unplaceable(self, route: ModelRoute) -> RequestError | None:
        if route.state is not ModelState.UNPLACEABLE or route.name not in self._cold_since:
            return None
        return refusals.unplaceable(route, retry_after_s=self._pace(route).wake_s(None))

    def _refuse(self, line: ModelLine[R], ticket: Ticket[R], error: RequestError) -> None:
        if ticket.is_waiting:
            line.remove(ticket)
            ticket.on_refused(error)

    def _too_late(self, line: ModelLine[R], ticket: Ticket[R], now: float) -> RequestError:
        route, pace = line.route, self._pace(line.route)
        waited_s = now - ticket.entered
        if route.name in self._cold_since and (ticket.is_waiting or not line.count):
            wake_s = pace.wake_s(route.expected_wait_s)
            return refusals.no_endpoint(route, waited_s=waited_s, retry_after_s=wake_s)
        return refusals.saturated(
            route,
            waited_s=waited_s if ticket.is_waiting else None,
            retry_after_s=pace.drain_s(line.count),
        )

    def _due(self, line: ModelLine[R], ticket: Ticket[R]) -> float:
        if self._is_held(line.route):
            return ticket.entered + self._wake_wait_s
        since = self._cold_since.get(line.route.name)
        if since is None:
            since = max(ticket.entered, line.warm_since)
        return since + self._slot_wait_s

    def _nudge(self, line: ModelLine[R], now: float) -> None:
        if line.route.state is not ModelState.ASLEEP or not self._is_held(line.route):
            line.nudged_at = None
        elif line.nudged_at is None or now - line.nudged_at >= _RENUDGE_S:
            line.nudged_at = now
            if self.nudges is not None:
                self.nudges.nudge(line.route.name)

    def _pace(self, route: ModelRoute) -> Pace:
        return self._paces.setdefault(route.name, Pace())
