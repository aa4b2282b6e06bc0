"""One model's endpoints in the order in which they are tried, and what may be taken from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from llmgw.config.server import RouterSettings
from llmgw.contracts.balancing import HasIndex, TellsMatch
from llmgw.domain.ids import EndpointId, ModelName
from llmgw.logs import get_logger
from llmgw.router.selection.profiles import CompiledProfile
from llmgw.router.selection.retries import RetryBudget
from llmgw.router.selection.rules import is_panic, may_eject
from llmgw.router.selection.state import EndpointState
from llmgw.router.table import Why

log = get_logger(__name__)

Tiers = tuple[tuple[EndpointState, ...], ...]


class Choice:
    """One model under one routing profile: the endpoints in question, and its balancer."""

    __slots__ = ("_has_failed", "_tiers", "balancer", "matcher", "profile", "size")

    def __init__(self, profile: CompiledProfile, members: tuple[EndpointState, ...]) -> None:
        self.profile = profile
        self.balancer = profile.balancer()
        self.matcher = self.balancer if isinstance(self.balancer, TellsMatch) else None
        """The balancer, if it can say how its last choice matched."""
        self._has_failed = False
        self.take(members)

    def take(self, members: tuple[EndpointState, ...]) -> None:
        """Set the endpoints; the balancer keeps what it has learnt."""
        pools = self.profile.pools
        mine = [state for state in members if not pools or state.endpoint.pool in pools]
        priorities = sorted({state.endpoint.priority for state in mine}, reverse=True)
        self._tiers: Tiers = tuple(
            tuple(state for state in mine if state.endpoint.priority == priority)
            for priority in priorities
        )
        self.size = len(mine)

    def usable(
        self,
        in_panic: bool,
        exclude: frozenset[EndpointId],
        company: Collection[EndpointState] = (),
    ) -> list[EndpointState]:
        """Return those with room of the highest priority that has any; [] if none has.

        company: no others are looked at; (): all are.
        """
        for tier in self._tiers:
            if in_panic:
                usable = [
                    state for state in tier if state.is_ready and state.in_flight < state.capacity
                ]
            else:
                usable = [state for state in tier if state.in_flight < state.limit]
            if usable and exclude:
                usable = [state for state in usable if state.endpoint.id not in exclude]
            if usable and company:
                usable = [state for state in usable if state in company]
            if usable:
                return usable
        return []

    def forget(self, endpoint: EndpointId) -> None:
        """Have the balancer drop what it learnt of a process that is no more."""
        try:
            self.balancer.forget(endpoint)
        except Exception:
            self.note_failure()

    def note_failure(self) -> None:
        """The balancer has raised what is being handled: of a plugin's bug the log has the first."""
        if not self._has_failed:
            self._has_failed = True
            log.exception("balancer failed", profile=self.profile.name)

    def why_none(self, exclude: frozenset[EndpointId]) -> Why:
        """Say why `usable` was empty."""
        ready = [state for tier in self._tiers for state in tier if state.is_ready]
        if not ready:
            return Why.NO_ENDPOINT
        if all(state.endpoint.id in exclude for state in ready):
            return Why.EXCLUDED
        return Why.SATURATED


class Line:
    """Everything that selection keeps per model."""

    __slots__ = (
        "_choices",
        "_max_share",
        "_members",
        "_panic_below",
        "asked",
        "budget",
        "in_panic",
        "name",
    )

    def __init__(self, name: ModelName, settings: RouterSettings) -> None:
        self.name = name
        self.budget = RetryBudget(share=settings.retry.budget, floor=settings.retry.budget_floor)
        self.in_panic = False
        self._panic_below = settings.ejection.panic_below
        self._max_share = settings.ejection.max_share
        self._members: tuple[EndpointState, ...] = ()
        self._choices: dict[str, Choice] = {}
        self.asked: dict[str | None, Choice] = {}  #: by what was asked for; None: the model's own

    @property
    def has_members(self) -> bool:
        return bool(self._members)

    @property
    def has_ready(self) -> bool:
        return any(state.is_ready for state in self._members)

    @property
    def wants_load(self) -> bool:
        return any(choice.profile.needs.engine_load for choice in self._choices.values())

    def take(self, members: tuple[EndpointState, ...]) -> None:
        """Set the endpoints. Of those that left, or whose life has ended, nothing is remembered."""
        staying = frozenset(members)
        for state in self._members:
            if state not in staying:
                self.forget(state.endpoint.id)
        self._members = members
        self.asked.clear()
        for choice in self._choices.values():
            choice.take(members)
        self.settle()

    def forget(self, endpoint: EndpointId) -> None:
        """Drop what balancers learnt of a process that is no more."""
        for choice in self._choices.values():
            choice.forget(endpoint)

    def choice(self, asked: str | None, profile: CompiledProfile) -> Choice:
        """Return the choice under this profile, made when it is first asked for.

        asked: the name that led to it, by which `asked` then has it until the next table.
        """
        choice = self._choices.get(profile.name)
        if choice is None:
            choice = self._choices[profile.name] = Choice(profile, self._members)
        if asked is None or asked == profile.name:  # what else is asked for knows no bounds
            self.asked[asked] = choice
        return choice

    def settle(self) -> None:
        """Decide anew whether to trust our own view of these endpoints' health."""
        ready = sum(state.is_ready for state in self._members)
        healthy = sum(state.is_healthy for state in self._members)
        self.in_panic = is_panic(ready=ready, healthy=healthy, panic_below=self._panic_below)

    def may_lose_one(self) -> bool:
        """Say whether one more endpoint may be ejected."""
        ready = [state for state in self._members if state.is_ready]
        out = sum(not state.is_healthy for state in ready)
        return may_eject(ready=len(ready), ejected=out, max_share=self._max_share)

    def index_sizes(self) -> Iterable[tuple[str, int]]:
        """Yield profile name and entries of each balancer that has an index."""
        for name, choice in self._choices.items():
            if isinstance(choice.balancer, HasIndex):
                yield name, choice.balancer.index_size
