"""Limits that several routers keep together: what each could use, and what each may.

A limit of a key or of an endpoint holds for all routers. Asking for leave per request would
cost more than the request, so each router gets a share and keeps it by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.domain.ids import EndpointId
from llmgw.domain.keys import KeyLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWant:
    """What one router could use of a key's limits now, with some room to grow."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterWants:
    """What one router could use. What is left out is not used at all."""

    keys: Mapping[str, KeyWant] = field(default_factory=dict)
    endpoints: Mapping[EndpointId, int] = field(default_factory=dict)  #: requests at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterShares:
    """What one router may use. What is left out is shared evenly among all `routers`."""

    serial: int = 0  #: tells answers of one desk apart
    routers: int = 1
    keys: Mapping[str, KeyLimits] = field(default_factory=dict)
    endpoints: Mapping[EndpointId, int] = field(default_factory=dict)

    def of_key(self, key: str, limits: KeyLimits) -> KeyLimits:
        """Return this router's part of a key's limits; budgets are summed, never shared."""
        given = self.keys.get(key)
        if given is None and self.routers == 1:
            return limits
        given = given or KeyLimits()
        return KeyLimits(
            requests_per_minute=self._part(limits.requests_per_minute, given.requests_per_minute),
            tokens_per_minute=self._part(limits.tokens_per_minute, given.tokens_per_minute),
            concurrent_requests=self._part(limits.concurrent_requests, given.concurrent_requests),
            tokens_per_day=limits.tokens_per_day,
            tokens_per_month=limits.tokens_per_month,
        )

    def of_endpoint(self, endpoint: EndpointId, max_inflight: int | None) -> int | None:
        """Return this router's part of an endpoint's `max_inflight`; None: not limited."""
        return self._part(max_inflight, self.endpoints.get(endpoint))

    def _part(self, limit: int | None, given: int | None) -> int | None:
        if limit is None:
            return None
        # Never 0: a router without a share could not even find out that it needs one, and a
        # limit below the number of routers would shut some of them for good.
        return min(limit, even_part(limit, self.routers) if given is None else max(1, given))


def even_part(limit: int, routers: int) -> int:
    """Return what each gets where nobody needs more, rounded up; at least 1 of 1 or more."""
    return -(-limit // routers)
