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

    __slots__ = ("_half", "_numbers", "_old", "_serial", "_young")

    def __init__(self, capacity: int) -> None:
        self._half = max(1, capacity // 2)
        self._young: dict[int, tuple[int, ...]] = {}
        self._old: dict[int, tuple[int, ...]] = {}
        # Endpoints are numbered anew after each restart: owners of a former life then match
        # nobody, and forgetting one need not walk the whole index.
        self._numbers: dict[EndpointId, int] = {}
        self._serial = 0

    def __len__(self) -> int:
        """Blocks held, a little over the truth while one is in both generations."""
        return len(self._young) + len(self._old)

    def number(self, endpoint: EndpointId) -> int:
        """Return what stands for this life of the endpoint in `depths` and `record`."""
        number = self._numbers.get(endpoint)
        if number is None:
            self._serial += 1
            number = self._numbers[endpoint] = self._serial
        return number

    def depths(self, hashes: Sequence[int]) -> Mapping[int, int]:
        """Return for each endpoint number how many of the leading blocks it has computed."""
        young, old = self._young, self._old
        depths: dict[int, int] = {}
        for depth, block in enumerate(hashes, 1):
            owners = young.get(block) or old.get(block)
            if owners is None:
                break
            for owner in owners:
                depths[owner] = depth
        return depths

    def record(self, hashes: Sequence[int], number: int) -> None:
        """Note that this endpoint is about to compute these blocks."""
        young, old = self._young, self._old
        for block in hashes:
            owners = young.get(block)
            if owners is None:
                owners = old.get(block, ())
            elif owners[0] == number:
                continue
            if not owners or owners[0] != number:
                kept = tuple(owner for owner in owners if owner != number)
                owners = (number, *kept[: _OWNERS - 1])
            young[block] = owners
        if len(young) >= self._half:
            self._old = young
            self._young = {}

    def forget(self, endpoint: EndpointId) -> None:
        """Let nothing match this endpoint until it has computed it again."""
        self._numbers.pop(endpoint, None)
