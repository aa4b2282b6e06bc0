"""One conversation, one endpoint: rendezvous hashing over a key of the request.

Every router and worker comes to the same answer without talking to the others, and when an
endpoint comes or goes only the sessions that it gains or loses move.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Annotated

from pydantic import Field

from llmgw.config.section import Section
from llmgw.contracts.balancing import Balancer, EndpointLoad, RoutedRequest
from llmgw.domain.ids import EndpointId
from llmgw.router.balancers.least_outstanding import least_outstanding
from llmgw.router.balancers.options import read_options

_MASK = (1 << 64) - 1


class SessionOptions(Section):
    """Where the key of a session is found; a request without one goes where it is quietest."""

    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")] | None = "x-session-id"
    """Request header that names the session; null: none."""
    user_field: bool = True
    """Use the body's `user` where the header is absent."""


def _hash64(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest())


def _mix(number: int) -> int:
    """Spread 64 bits (the finisher of splitmix64): blake2b per endpoint would cost five times that."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


class Session:
    """Remembers only the hashes of endpoint ids."""

    prompt_bytes = 0

    def __init__(self, options: SessionOptions) -> None:
        self.session_header = options.header.lower() if options.header else None
        self.session_user_field = options.user_field
        self._seeds: dict[EndpointId, int] = {}

    def choose(self, request: RoutedRequest, usable: Sequence[EndpointLoad]) -> int:
        if not request.session_key:
            return least_outstanding(request, usable)
        key = _hash64(request.session_key)
        best = 0
        highest = -1.0
        for place, load in enumerate(usable):
            drawn = (_mix(key ^ self._seed(load.endpoint.id)) + 0.5) / (_MASK + 1.0)
            # -share / ln(u) makes an endpoint win in proportion to its share.
            score = load.share / -math.log(drawn) if drawn < 1.0 else math.inf
            if score > highest:
                best, highest = place, score
        return best

    def forget(self, endpoint: EndpointId) -> None:
        self._seeds.pop(endpoint, None)

    def _seed(self, endpoint: EndpointId) -> int:
        seed = self._seeds.get(endpoint)
        if seed is None:
            seed = self._seeds[endpoint] = _hash64(endpoint)
        return seed


class SessionFactory:
    name = "session"

    def make(self, options: Mapping[str, object]) -> Balancer:
        return Session(read_options(self.name, SessionOptions, options))
