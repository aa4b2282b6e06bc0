"""Each in turn, by weight, spread evenly over the cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmgw.contracts.balancing import Balancer, EndpointLoad, RoutedRequest
from llmgw.domain.ids import EndpointId
from llmgw.router.balancers.options import NoOptions, read_options


class RoundRobin:
    """Smooth weighted round robin, as nginx has it.

    Each turn every endpoint gains its share of credit and the richest pays the sum of them.
    Credit is kept by endpoint id, so that the cycle does not start anew when one comes, goes or
    changes: with short-lived changes the first of the list would otherwise get most of the work.
    """

    prompt_bytes = 0

    def __init__(self) -> None:
        self._credit: dict[EndpointId, float] = {}

    def choose(
        self,
        request: RoutedRequest,  # noqa: ARG002 - whose turn it is does not depend on it
        usable: Sequence[EndpointLoad],
    ) -> int:
        credit = self._credit
        total = 0.0
        best = 0
        richest = float("-inf")
        for place, load in enumerate(usable):
            share = load.share
            total += share
            owned = credit.get(load.endpoint.id, 0.0) + share
            credit[load.endpoint.id] = owned
            if owned > richest:
                best, richest = place, owned
        credit[usable[best].endpoint.id] = richest - total
        return best

    def forget(self, endpoint: EndpointId) -> None:
        self._credit.pop(endpoint, None)


class RoundRobinFactory:
    name = "round_robin"

    def make(self, options: Mapping[str, object]) -> Balancer:
        read_options(self.name, NoOptions, options)
        return RoundRobin()
