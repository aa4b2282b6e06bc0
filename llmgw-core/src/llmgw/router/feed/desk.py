"""Hands out shares of limits to routers, from what each says that it could use. A store.

Level-triggered: each report is answered with the whole share, so a lost answer is made good by
the next, and a desk that has just been opened needs nothing of what the one before it knew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId
from llmgw.domain.keys import ApiKey, KeyLimits
from llmgw.domain.shares import KeyWant, RouterShares, RouterWants, even_part
from llmgw.router.feed.sharing import divide, may_grow_to

_SILENT_S = 15.0
"""A router that has said nothing for this long has no share any more; its requests may still run."""
_SETTLE_S = 3.0
"""A desk that has just opened believes for this long how many routers there were before: routers
report each second, and with only the first one heard it would get everything."""
_KINDS = tuple(kind.name for kind in fields(KeyWant))
_ENDPOINT = ""

_What = tuple[str, str]
"""One limit: kind and key, or `_ENDPOINT` and an endpoint."""


@dataclass(slots=True)
class _Router:
    """What one router was told and what it is known to keep to."""

    wants: RouterWants
    heard_at: float
    told: RouterShares
    in_force: RouterShares


class ShareDesk:
    """Divides limits among the routers that report.

    `bound` is what may be handed out, where that is itself a share: a parent of workers passes on
    what its own servers gave it.
    """

    def __init__(self) -> None:
        self.bound = RouterShares()
        self._keys: Mapping[str, KeyLimits] = MappingProxyType({})
        self._endpoints: Mapping[EndpointId, int] = MappingProxyType({})
        self._routers: dict[str, _Router] = {}
        self._opened_at: float | None = None
        self._expected = 1
        self._serial = 0

    def take_keys(self, keys: Iterable[ApiKey]) -> None:
        self._keys = {key.id: key.limits for key in keys}

    def take_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        self._endpoints = {
            endpoint.id: endpoint.max_inflight
            for endpoint in endpoints
            if endpoint.max_inflight is not None
        }

    def expect(self, routers: int) -> None:
        """Say how many routers there will be, before the first of them reports."""
        self._expected = max(self._expected, routers)

    def wants(self, now: float) -> RouterWants:
        """Return what all routers together could use."""
        self._forget_silent(now)
        keys: dict[str, KeyWant] = {}
        endpoints: dict[EndpointId, int] = {}
        for router in self._routers.values():
            for id_, want in router.wants.keys.items():
                known = keys.get(id_)
                keys[id_] = want if known is None else _sum(known, want)
            for endpoint, count in router.wants.endpoints.items():
                endpoints[endpoint] = endpoints.get(endpoint, 0) + count
        return RouterWants(keys=keys, endpoints=endpoints)

    def share(
        self, name: str, wants: RouterWants, in_force: RouterShares | None, now: float
    ) -> RouterShares:
        """Return what a router may use from now on.

        in_force: serial and number of routers of the answer that it keeps to; None: none yet.
        """
        if self._opened_at is None:
            self._opened_at = now
        self._forget_silent(now)
        if in_force is not None and now - self._opened_at < _SETTLE_S:
            self._expected = max(self._expected, in_force.routers)
        known = self._routers.get(name)
        if known is None:
            nothing = RouterShares(routers=max(1, len(self._routers) + 1))
            known = self._routers[name] = _Router(wants, now, told=nothing, in_force=nothing)
        known.wants, known.heard_at = wants, now
        if in_force is not None and in_force.serial == known.told.serial:
            known.in_force = known.told
        count = len(self._routers)
        if now - self._opened_at < _SETTLE_S:
            count = max(count, self._expected)
        keys: dict[str, KeyLimits] = {}
        endpoints: dict[EndpointId, int] = {}
        for what in self._wanted():
            part = self._part(what, name, count, is_new=in_force is None)
            if part is None:
                continue
            kind, id_ = what
            if kind == _ENDPOINT:
                endpoints[EndpointId(id_)] = part
            else:
                keys[id_] = _with(keys.get(id_), kind, part)
        self._serial += 1
        known.told = RouterShares(
            serial=self._serial, routers=count, keys=keys, endpoints=endpoints
        )
        return known.told

    def _forget_silent(self, now: float) -> None:
        for name in [
            name for name, router in self._routers.items() if now - router.heard_at >= _SILENT_S
        ]:
            del self._routers[name]

    def _wanted(self) -> Iterator[_What]:
        """Yield each limit of which anybody wants more than the least; most keys are idle."""
        seen: set[_What] = set()
        for router in self._routers.values():
            for id_, want in router.wants.keys.items():
                for kind in _KINDS:
                    if getattr(want, kind):
                        seen.add((kind, id_))
            for endpoint in router.wants.endpoints:
                seen.add((_ENDPOINT, endpoint))
        yield from sorted(seen)

    def _part(self, what: _What, name: str, count: int, *, is_new: bool) -> int | None:
        limit = self._limit(what)
        if limit is None or count > len(self._routers):
            return None
        wants = {other: _want(router.wants, what) for other, router in self._routers.items()}
        even = even_part(limit, count)
        is_even_now = all(
            _given(router.told, what) is None and _given(router.in_force, what) is None
            for router in self._routers.values()
        )
        if is_even_now and max(wants.values()) <= even:
            return None  # nearly always
        before = {other: _given(router.told, what) for other, router in self._routers.items()}
        part = divide(limit, wants, before)[name]
        held = sum(
            max(_held(router.told, what, limit), _held(router.in_force, what, limit))
            for other, router in self._routers.items()
            if other != name
        )
        grown = may_grow_to(
            even if part is None else part,
            limit=limit,
            # A router that has just come must not be shut until the others have heard of it.
            least=even if is_new else _held(self._routers[name].told, what, limit),
            held_elsewhere=held,
        )
        return None if part is None and grown == even else grown

    def _limit(self, what: _What) -> int | None:
        kind, id_ = what
        if kind == _ENDPOINT:
            endpoint = EndpointId(id_)
            return self.bound.of_endpoint(endpoint, self._endpoints.get(endpoint))
        limits = self._keys.get(id_)
        if limits is None:
            return None
        limit: int | None = getattr(self.bound.of_key(id_, limits), kind)
        return limit


def _want(wants: RouterWants, what: _What) -> int:
    kind, id_ = what
    if kind == _ENDPOINT:
        return wants.endpoints.get(EndpointId(id_), 0)
    want = wants.keys.get(id_)
    count: int = 0 if want is None else getattr(want, kind)
    return count


def _given(shares: RouterShares, what: _What) -> int | None:
    kind, id_ = what
    if kind == _ENDPOINT:
        return shares.endpoints.get(EndpointId(id_))
    limits = shares.keys.get(id_)
    given: int | None = None if limits is None else getattr(limits, kind)
    return given


def _held(shares: RouterShares, what: _What, limit: int) -> int:
    given = _given(shares, what)
    return even_part(limit, shares.routers) if given is None else given


def _with(limits: KeyLimits | None, kind: str, part: int) -> KeyLimits:
    known = limits or KeyLimits()
    values = {name: getattr(known, name) for name in _KINDS}
    return KeyLimits(**{**values, kind: part})


def _sum(one: KeyWant, other: KeyWant) -> KeyWant:
    return KeyWant(**{kind: getattr(one, kind) + getattr(other, kind) for kind in _KINDS})
