"""Fewest requests in flight, by weight. The default: it needs to know nothing of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmgw.contracts.balancing import Balancer, EndpointLoad, RoutedRequest
from llmgw.domain.ids import EndpointId
from llmgw.router.balancers.options import NoOptions, read_options


def least_outstanding(request: RoutedRequest, usable: Sequence[EndpointLoad]) -> int:
    """Return the index of the endpoint whose requests in flight are fewest for its share.

    Ties go to the first one after a place that the seed picks: without it the first endpoint
    would get everything while traffic is light.
    """
    count = len(usable)
    best = start = int(request.seed * count)
    load = usable[start]
    lowest = (load.in_flight + 1) / load.share
    for place in (*range(start + 1, count), *range(start)):
        load = usable[place]
        score = (load.in_flight + 1) / load.share
        if score < lowest:
            best, lowest = place, score
    return best


class LeastOutstanding:
    """Keeps no state of its own."""

    prompt_bytes = 0

    choose = staticmethod(least_outstanding)

    def forget(self, endpoint: EndpointId) -> None:
        """Nothing was learnt."""


class LeastOutstandingFactory:
    name = "least_outstanding"

    def make(self, options: Mapping[str, object]) -> Balancer:
        read_options(self.name, NoOptions, options)
        return LeastOutstanding()
