"""The better of two drawn at random: nearly as even as the best of all, and routers that do not
know of each other's requests do not all run to the same endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmgw.contracts.balancing import Balancer, EndpointLoad, RoutedRequest
from llmgw.domain.ids import EndpointId
from llmgw.router.balancers.options import NoOptions, read_options


class PowerOfTwo:
    """Keeps no state of its own."""

    prompt_bytes = 0

    def choose(self, request: RoutedRequest, usable: Sequence[EndpointLoad]) -> int:
        count = len(usable)
        if count == 1:
            return 0
        # One draw holds two: its whole part picks the first, what is left over the second.
        draw = request.seed * count
        first = int(draw)
        second = int((draw - first) * (count - 1))
        if second >= first:
            second += 1
        one, other = usable[first], usable[second]
        if (one.in_flight + 1) / one.share <= (other.in_flight + 1) / other.share:
            return first
        return second

    def forget(self, endpoint: EndpointId) -> None:
        """Nothing was learnt."""


class PowerOfTwoFactory:
    name = "power_of_two"

    def make(self, options: Mapping[str, object]) -> Balancer:
        read_options(self.name, NoOptions, options)
        return PowerOfTwo()
