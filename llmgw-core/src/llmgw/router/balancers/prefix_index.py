"""Which endpoint has computed which beginnings of prompts. A store: approximate, bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmgw.domain.ids import EndpointId

_OWNERS = 4
"""Endpoints remembered per block. A system prompt that all requests share is soon everywhere;
more owners would only make each walk longer."""


class PrefixIndex:
    """Owners by block hash, at most `capacity` blocks.

    Two generations stand in for an LRU list: what is used moves to the young one, and when
    that is half the capacity the old one is dropped. A list would cost a move per block and
    request. A hash stands for its block and all blocks before it.
    """

    __slots__ = ("_endpoints", "_half", "_numbers", "_old", "_serial", "_young")

    def __init__(self, capacity: int) -> None:
        self._half = max(1, capacity // 2)
        self._young: dict[int, tuple[int, ...]] = {}
        self._old: dict[int, tuple[int, ...]] = {}
        # Endpoints are numbered anew after each restart: owners of a former life then match
        # nobody, and forgetting one need not walk the whole index.
        self._numbers: dict[EndpointId, int] = {}
        self._endpoints: dict[int, EndpointId] = {}
        self._serial = 0

    def __len__(self) -> int:
        """Blocks held, a little over the truth while one is in both generations."""
        return len(self._young) + len(self._old)

    def depths(self, hashes: Sequence[int]) -> Mapping[EndpointId, int]:
        """Return how many of the leading blocks each endpoint has computed; those with none are
        left out."""
        young, old = self._young, self._old
        depths: dict[int, int] = {}
        for depth, block in enumerate(hashes, 1):
            owners = young.get(block) or old.get(block)
            if owners is None:
                break
            for owner in owners:
                depths[owner] = depth
        known = self._endpoints
        return {known[owner]: depth for owner, depth in depths.items() if owner in known}

    def record(self, hashes: Sequence[int], endpoint: EndpointId) -> None:
        """Note that this endpoint is about to compute these blocks."""
        young, old = self._young, self._old
        number = self._numbers.get(endpoint) or self._number(endpoint)
        alone = (number,)
        for block in hashes:
            owners = young.get(block)
            if owners is None:
                owners = old.get(block)
                if owners is None:
                    young[block] = alone
                    continue
            elif owners[0] == number:
                continue
            if owners[0] != number:
                kept = tuple(owner for owner in owners if owner != number)
                owners = (number, *kept[: _OWNERS - 1])
            young[block] = owners
        if len(young) >= self._half:
            self._old = young
            self._young = {}

    def forget(self, endpoint: EndpointId) -> None:
        """Let nothing match this endpoint until it has computed it again."""
        number = self._numbers.pop(endpoint, None)
        if number is not None:
            del self._endpoints[number]

    def _number(self, endpoint: EndpointId) -> int:
        self._serial += 1
        self._numbers[endpoint] = self._serial
        self._endpoints[self._serial] = endpoint
        return self._serial
