"""Prompts that begin alike go where that beginning is already in the cache, within bounds of load.

Approximate: nobody asks the engine what it kept. The prompt's first blocks are hashed, and the
index remembers who got them last (routing facts of other routers: docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from llmgw.config.section import Section
from llmgw.contracts.balancing import Balancer, EndpointLoad, RoutedRequest
from llmgw.domain.ids import EndpointId
from llmgw.router.balancers.least_outstanding import least_outstanding
from llmgw.router.balancers.options import read_options
from llmgw.router.balancers.prefix_index import PrefixIndex


class PrefixOptions(Section):
    """How much of a prompt counts, and how uneven affinity may make the load."""

    prompt_bytes: Annotated[int, Field(ge=64, le=65536)] = 4096
    """Bytes of the prompt that are looked at. Hashing costs about 1 us per 2 KB."""
    block_bytes: Annotated[int, Field(ge=32, le=8192)] = 256
    """A shorter common beginning is not noticed."""
    match: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Share of the looked-at blocks that must be known before affinity counts."""
    load_bound: Annotated[float, Field(ge=1)] = 1.25
    """An endpoint with more than this times its fair part of the requests is passed over."""
    imbalance_requests: Annotated[int, Field(ge=0)] = 64
    imbalance_ratio: Annotated[float, Field(ge=1)] = 1.5
    """Busiest minus quietest above the one and busiest over quietest above the other: no affinity."""
    index_blocks: Annotated[int, Field(ge=128, le=4_194_304)] = 131_072
    """Blocks remembered per model, about 150 bytes each."""


class Prefix:
    """Affinity by the beginning of the prompt, for one model."""

    def __init__(self, options: PrefixOptions) -> None:
        self.prompt_bytes = options.prompt_bytes
        self._options = options
        self._index = PrefixIndex(options.index_blocks)
        self.match = (0, 0)

    @property
    def index_size(self) -> int:
        """Blocks in the index now; never above `index_blocks` by more than one prompt's."""
        return len(self._index)

    def choose(self, request: RoutedRequest, usable: Sequence[EndpointLoad]) -> int:
        quietest = least_outstanding(request, usable)
        hashes = self._hashes(request.prompt)
        self.match = (0, len(hashes))
        if not hashes:
            return quietest
        chosen = quietest
        if len(usable) > 1 and (depths := self._index.depths(hashes)):
            chosen, depth = self._longest_match(len(hashes), depths, usable, quietest)
            self.match = (depth, len(hashes))
        # A miss goes where it is quietest, not where the index is smallest: that one may be the
        # busiest of all.
        self._index.record(hashes, usable[chosen].endpoint.id)
        return chosen

    def forget(self, endpoint: EndpointId) -> None:
        self._index.forget(endpoint)

    def _longest_match(
        self,
        blocks: int,
        depths: Mapping[EndpointId, int],
        usable: Sequence[EndpointLoad],
        quietest: int,
    ) -> tuple[int, int]:
        """Return whom to take, and how many of the leading blocks it has computed."""
        options = self._options
        total = high = 0
        low, share = usable[quietest].in_flight, 0.0
        for load in usable:
            in_flight = load.in_flight
            total += in_flight
            share += load.share
            if in_flight < low:
                low = in_flight
            elif in_flight > high:
                high = in_flight
        if high - low > options.imbalance_requests and high > options.imbalance_ratio * low:
            return quietest, 0
        least = max(1.0, options.match * blocks)
        # The one that is asked for counts too, or a single request could never match.
        fair = options.load_bound * (total + 1) / share
        best, deepest = quietest, 0
        for place, load in enumerate(usable):
            depth = depths.get(load.endpoint.id, 0)
            if depth < least or depth < deepest:
                continue
            if load.in_flight + 1 > fair * load.share + 1:
                continue
            # Of equally good ones the quieter: all hold a shared system prompt after a while.
            if depth > deepest or load.in_flight < usable[best].in_flight:
                best, deepest = place, depth
        return best, deepest or depths.get(usable[best].endpoint.id, 0)

    def _hashes(self, prompt: bytes) -> list[int]:
        """Return one hash per whole block, each over all that comes before it too.

        Python's own hash of bytes (SipHash) is salted per process, so nobody outside can craft
        prompts that collide; the index lives no longer than that.
        """
        size = self._options.block_bytes
        chained = 0
        hashes = []
        for end in range(size, min(len(prompt), self.prompt_bytes) + 1, size):
            chained = hash((chained, prompt[end - size : end]))
            hashes.append(chained)
        return hashes


class PrefixFactory:
    name = "prefix"

    def make(self, options: Mapping[str, object]) -> Balancer:
        return Prefix(read_options(self.name, PrefixOptions, options))
