"""Who waits for one model, and who of them is next. A store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from llmgw.contracts.balancing import RoutedRequest
from llmgw.errors import RequestError
from llmgw.router.admission.fair import FairLine
from llmgw.router.table import ModelRoute

R = TypeVar("R")

_BYTES_PER_COST = 4096
"""A request counts as one, and once more for about each thousand tokens of its prompt."""


class HasKey(Protocol):
    """A key's grant, as admission needs it: shares are fair between keys."""

    @property
    def key_id(self) -> str: ...

    @property
    def is_valid(self) -> bool:
        """False once the key has been revoked or has expired."""
        ...


class Ticket(Generic[R]):
    """One request's place in the line. Ends in exactly one of its callbacks, or in `leave`."""

    __slots__ = (
        "cost",
        "entered",
        "grant",
        "is_waiting",
        "key",
        "line",
        "on_ready",
        "on_refused",
        "priority",
        "profile",
        "request",
    )

    def __init__(
        self,
        request: RoutedRequest,
        *,
        grant: HasKey | None,
        priority: int,
        profile: str | None,
        entered: float,
        on_ready: Callable[[R], None],
        on_refused: Callable[[RequestError], None],
    ) -> None:
        self.request = request
        self.grant = grant
        self.key = grant.key_id if grant is not None else ""
        self.cost = 1.0 + request.body_bytes / _BYTES_PER_COST
        self.priority = priority
        self.profile = profile
        self.entered = entered
        self.on_ready = on_ready
        self.on_refused = on_refused
        self.line: ModelLine[R] | None = None
        self.is_waiting = False

    @property
    def has_valid_key(self) -> bool:
        """False once its key has been revoked or has expired; True where no key is asked for."""
        return self.grant is None or self.grant.is_valid

    def leave(self) -> None:
        """The client is gone: no callback will come any more. Does nothing after one has come."""
        if self.line is not None and self.is_waiting:
            self.line.remove(self)


Lane = tuple[FairLine[Ticket[R]], ...]  # one line per priority class, the most urgent first


class ModelLine(Generic[R]):
    """Everybody who waits for one model.

    A lane per routing profile, since profiles may be bound to different pools: who waits for a
    full pool must not hold up those for whom another one has room.
    """

    __slots__ = (
        "_arrivals",
        "_classes",
        "count",
        "is_serving",
        "lanes",
        "must_serve_again",
        "nudged_at",
        "route",
        "warm_since",
    )

    def __init__(self, route: ModelRoute, *, classes: int, now: float) -> None:
        self.route = route
        self.lanes: dict[str | None, Lane[R]] = {}
        self.count = 0
        self.warm_since = now  #: when an endpoint last came up
        self.nudged_at: float | None = None
        self.is_serving = False
        self.must_serve_again = False
        self._classes = classes
        self._arrivals: deque[Ticket[R]] = deque()

    def push(self, ticket: Ticket[R]) -> None:
        """Let it wait."""
        lane = self.lanes.get(ticket.profile)
        if lane is None:
            lane = self.lanes[ticket.profile] = tuple(FairLine() for _ in range(self._classes))
        lane[ticket.priority].push(ticket)
        self._arrivals.append(ticket)
        self.count += 1
        ticket.line = self
        ticket.is_waiting = True

    def head(self, lane: Lane[R]) -> Ticket[R] | None:
        """Return who is next in this lane; None if nobody waits in it."""
        for line in lane:
            if (ticket := line.peek()) is not None:
                return ticket
        return None

    def take(self, ticket: Ticket[R]) -> None:
        """Take out the ticket that `head` has returned, to be served."""
        self.lanes[ticket.profile][ticket.priority].pop()
        ticket.is_waiting = False
        self.count -= 1

    def remove(self, ticket: Ticket[R]) -> None:
        """Take out any ticket that waits, unserved."""
        ticket.is_waiting = False
        self.lanes[ticket.profile][ticket.priority].left(ticket)
        self.count -= 1
        if len(self._arrivals) > 2 * self.count + 64:
            self._arrivals = deque(item for item in self._arrivals if item.is_waiting)

    def is_behind(self, profile: str | None, priority: int) -> bool:
        """Say whether somebody waits whom a newcomer of this class must not overtake."""
        lane = self.lanes.get(profile, ())
        return any(line.peek() is not None for line in lane[: priority + 1])

    def oldest(self) -> Ticket[R] | None:
        """Return who has waited longest."""
        arrivals = self._arrivals
        while arrivals and not arrivals[0].is_waiting:
            arrivals.popleft()
        return arrivals[0] if arrivals else None

    def newest_below(self, priority: int) -> Ticket[R] | None:
        """Return the newest ticket of the lowest class, if that is less urgent than `priority`."""
        found: Ticket[R] | None = None
        for ticket in reversed(self._arrivals):
            if ticket.is_waiting and ticket.priority > (found.priority if found else priority):
                found = ticket
        return found

    def waiting(self) -> tuple[Ticket[R], ...]:
        """Return everybody, in order of arrival."""
        return tuple(ticket for ticket in self._arrivals if ticket.is_waiting)
