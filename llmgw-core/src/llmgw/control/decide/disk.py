"""What weights take of a node's disk: those that lie there, and those that are on their way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmgw.control.decide.accounts import NodeAccount
from llmgw.domain.weights import WeightFacts, is_local

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Weights that do not fit beside those that the node has, or has been promised."""

    wanted_mib: float  #: 0: they lie there unused, and what is on its way needs their place
    free_mib: float  #: left by what is on its way; below 0: less than that needs
    arriving_mib: float  #: of what is on its way, the part that has not come yet


def find_shortage(
    account: NodeAccount, refs: Iterable[str], facts: Mapping[str, WeightFacts]
) -> Shortage | None:
    """Return what a shard that needs these weights lacks of the disk; None: nothing that is known.

    Weights that somebody needs there already are counted once, with who needed them first. Those
    that nobody needs are free, as the node removes them once room is needed.
    """
    free_mib, inventory = account.inventory.disk_free_mib, account.inventory
    new = {ref for ref in refs if ref not in account.needed and not is_local(ref)}
    if free_mib is None or not new or not facts:
        return None
    present = {item.ref: item.size_bytes for item in inventory.weights}
    wanted_mib = sum(_size_mib(facts.get(ref)) for ref in new if ref not in present)
    arriving_mib = sum(
        max(0.0, _size_mib(facts.get(ref)) - arrived_mib)
        for ref, arrived_mib in account.arriving.items()
        if ref not in present and not is_local(ref)
    )
    left_mib = free_mib - arriving_mib
    if wanted_mib <= left_mib:
        return None
    unneeded = present.keys() - account.needed - new
    left_mib += sum(present[ref] for ref in unneeded) / _MIB
    if wanted_mib <= left_mib:
        return None
    return Shortage(wanted_mib=wanted_mib, free_mib=left_mib, arriving_mib=arriving_mib)


def _size_mib(facts: WeightFacts | None) -> float:
    """Return what is known of the size: nothing counts as nothing, for the node to refuse."""
    return (facts.disk_mib if facts else None) or 0.0
