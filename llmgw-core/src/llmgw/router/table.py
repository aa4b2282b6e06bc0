"""Which names lead where. Swapped whole, never edited."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from llmgw.domain.endpoints import Endpoint, ModelState, ModelStatus
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.domain.plans import Refusal
from llmgw.domain.roles import Role

_NO_EPOCH = Epoch(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoute:
    """One model: all its names, and where its requests may go."""

    names: tuple[ModelName, ...]  #: canonical name first, then aliases
    endpoints: tuple[Endpoint, ...]  #: highest priority first, then by id; draining ones included
    state: ModelState = ModelState.SERVING
    expected_wait_s: float | None = None
    refusal: Refusal | None = None
    routing: str | None = None
    created: int = 0
    prefill: ModelRoute | None = None
    """Where the prompts of this model are computed, if that is apart: a route of its own, under a
    name that no model has. `endpoints` then are those that compute the answers."""
    name: ModelName = field(init=False)
    """The canonical name: what keys are checked against and what is counted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.names[0])

    @property
    def halves(self) -> tuple[ModelRoute, ...]:
        """The route itself, and the one of its prompts where that is apart."""
        return (self,) if self.prefill is None else (self, self.prefill)


class Why(StrEnum):
    """Why no endpoint of a route can be had now."""

    NO_ENDPOINT = "no_endpoint"  #: none is published, or all of them drain or are stuck
    SATURATED = "saturated"  #: all that could be used are full
    EXCLUDED = "excluded"  #: only those are left that this request has tried
    HELD_BACK = "held_back"  #: it is a suspect, and where its like runs there is no room


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The answer in place of an endpoint."""

    why: Why
    role: Role | None = None  #: which half of a pair it is about


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Every route, as of one epoch."""

    epoch: Epoch = _NO_EPOCH
    routes: tuple[ModelRoute, ...] = ()  #: by canonical name
    by_name: Mapping[str, ModelRoute] = field(
        default_factory=lambda: MappingProxyType({}), repr=False, compare=False
    )

    @staticmethod
    def build(endpoints: Iterable[Endpoint], models: Iterable[ModelStatus], epoch: Epoch) -> Table:
        """Return the table of these endpoints and catalog entries, as `TableMaker` makes it."""
        return TableMaker().make(endpoints, models, epoch)

    def find(self, name: str) -> ModelRoute | None:
        """Return the route of a name or alias, which must match exactly."""
        return self.by_name.get(name)

    def visible(self, allows: Callable[[ModelRoute], bool]) -> tuple[ModelRoute, ...]:
        """Return the routes that a key may see, by canonical name."""
        return tuple(route for route in self.routes if allows(route))


class TableMaker:
    """Makes one table after the other.

    A route about which nothing has changed is the very route of the table before, so that one
    change among five thousand endpoints costs nobody five thousand.
    """

    def __init__(self) -> None:
        self._routes: Mapping[ModelName, ModelRoute] = {}
        self._entries: Mapping[ModelName, ModelStatus] = {}
        self._groups = _Groups({})

    def make(
        self, endpoints: Iterable[Endpoint], models: Iterable[ModelStatus], epoch: Epoch
    ) -> Table:
        """Return the table of these endpoints and catalog entries. Their order is irrelevant.

        A canonical name beats an alias; of two aliases the one whose canonical name sorts first
        wins. An endpoint of a replica belongs to its canonical name only, and to its adapters; a
        static one to each name that it says it answers to. Names unknown to the catalog form
        routes by themselves, unless nothing but draining endpoints is behind them: such a model
        has been withdrawn.
        """
        entries = _first_of_each(sorted(models, key=_rank_of_entry))
        owners = _name_owners(entries.values())
        is_same_catalog = owners == self._groups.owners
        if not is_same_catalog:
            self._groups = _Groups(owners)
        touched = self._groups.take({endpoint.id: endpoint for endpoint in endpoints})
        routes: list[ModelRoute] = []
        for name, entry in entries.items():
            known = self._routes.get(name) if is_same_catalog and name not in touched else None
            if known is None or self._entries[name] != entry:
                known = self._kept(_route_of(entry, owners, self._groups.of(name)))
            routes.append(known)
        routes += map(self._kept, _routes_of_claims(self._groups.claims()))
        routes.sort(key=lambda route: route.name)
        self._entries = entries
        self._routes = {route.name: route for route in routes}
        by_name: dict[str, ModelRoute] = {name: route for route in routes for name in route.names}
        return Table(epoch=epoch, routes=tuple(routes), by_name=MappingProxyType(by_name))

    def _kept(self, route: ModelRoute) -> ModelRoute:
        """Return the route of the table before, if it says the same."""
        known = self._routes.get(route.name)
        return known if known is not None and known == route else route


class _Groups:
    """Which endpoints each entry of one catalog has."""

    def __init__(self, owners: Mapping[ModelName, ModelName]) -> None:
        """owners: the canonical name behind each name."""
        self.owners = owners
        self._members: dict[ModelName, dict[EndpointId, Endpoint]] = {
            owner: {} for owner in owners.values()
        }
        self._claimants: dict[EndpointId, Endpoint] = {}  #: of names that the catalog does not know
        self._endpoints: dict[EndpointId, Endpoint] = {}

    def take(self, endpoints: dict[EndpointId, Endpoint]) -> set[ModelName]:
        """Replace the endpoints; return the canonical names for which one came, went or changed."""
        before, self._endpoints = self._endpoints, endpoints
        touched: set[ModelName] = set()
        for id_, old in before.items():
            new = endpoints.get(id_)
            if new is old:
                continue
            if new == old:
                endpoints[id_] = old  # read anew from a feed
                continue
            self._claimants.pop(id_, None)
            for owner in self._owners_of(old):
                del self._members[owner][id_]
                touched.add(owner)
        for id_, new in endpoints.items():
            if before.get(id_) is new:
                continue
            for owner in self._owners_of(new):
                self._members[owner][id_] = new
                touched.add(owner)
            if any(self._claimed_by(new)):
                self._claimants[id_] = new
        return touched

    def of(self, owner: ModelName) -> tuple[Endpoint, ...]:
        """Return the endpoints of an entry, in the order of a route."""
        return tuple(sorted(self._members[owner].values(), key=_rank_of_endpoint))

    def claims(self) -> dict[ModelName, list[Endpoint]]:
        """Return who answers to each name that the catalog does not know."""
        claims: dict[ModelName, list[Endpoint]] = {}
        for endpoint in sorted(self._claimants.values(), key=_rank_of_endpoint):
            for name in self._claimed_by(endpoint):
                claims.setdefault(name, []).append(endpoint)
        return claims

    def _owners_of(self, endpoint: Endpoint) -> set[ModelName]:
        names = endpoint.models[:1] if endpoint.replica is not None else endpoint.models
        owners = {self.owners[name] for name in names if name in self.owners}
        return owners.union(name for name in endpoint.adapters if name in self._members)

    def _claimed_by(self, endpoint: Endpoint) -> Iterator[ModelName]:
        if endpoint.replica is None or endpoint.models[0] not in self.owners:
            yield from (name for name in endpoint.models if name not in self.owners)


def _route_of(
    entry: ModelStatus, owners: Mapping[ModelName, ModelName], endpoints: tuple[Endpoint, ...]
) -> ModelRoute:
    return _with_halves(
        ModelRoute(
            names=tuple(name for name in entry.names if owners[name] == entry.names[0]),
            endpoints=endpoints,
            state=entry.state,
            expected_wait_s=entry.expected_wait_s,
            refusal=entry.refusal,
            routing=entry.routing,
            created=entry.created,
        )
    )


def _with_halves(route: ModelRoute) -> ModelRoute:
    """Return the route with its prefill endpoints apart; as it is where none has a role."""
    if all(endpoint.role is None for endpoint in route.endpoints):
        return route
    prefill = ModelRoute(
        names=(ModelName(f"{route.name} ({Role.PREFILL})"),),
        endpoints=tuple(item for item in route.endpoints if item.role is Role.PREFILL),
        routing=route.routing,
    )
    others = tuple(item for item in route.endpoints if item.role is not Role.PREFILL)
    return replace(route, endpoints=others, prefill=prefill)


def _rank_of_entry(entry: ModelStatus) -> tuple[tuple[ModelName, ...], str]:
    return entry.names, entry.state


def _rank_of_endpoint(endpoint: Endpoint) -> tuple[int, EndpointId]:
    return -endpoint.priority, endpoint.id


def _first_of_each(entries: list[ModelStatus]) -> dict[ModelName, ModelStatus]:
    seen: dict[ModelName, ModelStatus] = {}
    for entry in entries:
        seen.setdefault(entry.names[0], entry)
    return seen


def _name_owners(entries: Collection[ModelStatus]) -> dict[ModelName, ModelName]:
    owners = {entry.names[0]: entry.names[0] for entry in entries}
    for entry in entries:
        for alias in entry.names[1:]:
            owners.setdefault(alias, entry.names[0])
    return owners


def _routes_of_claims(claims: dict[ModelName, list[Endpoint]]) -> list[ModelRoute]:
    """Make one route of all names that exactly the same endpoints answer to.

    Two names with different endpoints are two models: an endpoint gets no name that it did not
    claim, and a key for one of them does not open the other.
    """
    groups: dict[frozenset[EndpointId], list[ModelName]] = {}
    for name in sorted(claims, key=lambda name: _rank_of(name, claims[name])):
        groups.setdefault(frozenset(endpoint.id for endpoint in claims[name]), []).append(name)
    return [
        _with_halves(ModelRoute(names=tuple(names), endpoints=tuple(claims[names[0]])))
        for names in groups.values()
        if any(not endpoint.draining for endpoint in claims[names[0]])
    ]


def _rank_of(name: ModelName, claimants: list[Endpoint]) -> tuple[int, ModelName]:
    """Order names as their endpoints list them, so that the first listed one is canonical."""
    return min(endpoint.models.index(name) for endpoint in claimants), name
