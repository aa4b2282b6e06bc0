"""Parts that placement policies are built from: plain functions of one candidate."""

from __future__ import annotations

from llmgw.contracts.placement import Candidate


def weights_at_hand(candidate: Candidate) -> float:
    """Return the share of its nodes that have the weights already, 0.0 to 1.0."""
    return sum(offer.has_weights for offer in candidate.offers) / len(candidate.offers)


def engine_at_hand(candidate: Candidate) -> float:
    """Return the share of its nodes that have the engine already, 0.0 to 1.0."""
    return sum(offer.has_engine for offer in candidate.offers) / len(candidate.offers)


def left_over(candidate: Candidate) -> float:
    """Return the share of devices that stays free on its nodes, 0.0 (full) to 1.0."""
    total = left = 0
    for offer in candidate.offers:
        total += offer.total_devices
        left += offer.free_devices - len(offer.devices)
    return left / total if total else 0.0


def wasted_memory(candidate: Candidate) -> float:
    """Return how much of the offered devices' memory stays unused, in units of 80 GiB a device.

    0.0 where it is not known.
    """
    devices = spare_mib = 0
    for offer in candidate.offers:
        if offer.free_memory_mib is None:
            return 0.0
        devices += len(offer.devices)
        spare_mib += offer.free_memory_mib
    return spare_mib / devices / 81920 if devices else 0.0


def crowding(candidate: Candidate) -> int:
    """Return how many replicas its nodes run."""
    return sum(offer.replicas for offer in candidate.offers)


def same_model(candidate: Candidate) -> int:
    """Return how many replicas of the same model its nodes run."""
    return sum(offer.same_model for offer in candidate.offers)


def islands_used(candidate: Candidate) -> int:
    """Return over how many NVLink islands the offered devices of the worst node are spread."""
    return max(1, *[len(offer.islands) for offer in candidate.offers])
