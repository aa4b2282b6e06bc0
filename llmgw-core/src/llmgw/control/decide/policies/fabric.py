"""Respect the wiring: what talks a lot sits on one island of fast links."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw.contracts.placement import Candidate, PlacementRequest, Score, Verdict, Veto
from llmgw.control.decide.policies import scores


class Fabric:
    """Tensor parallel inside one NVLink island, pipeline along one rail, nothing over slow links."""

    name = "fabric"

    def rank(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> Sequence[Verdict]:
        """Veto what would cross slow links, then pack; see the class."""
        return [self._verdict(request, candidate) for candidate in candidates]

    def _verdict(self, request: PlacementRequest, candidate: Candidate) -> Verdict:
        tensor = request.profile.parallel.tensor
        for offer in candidate.offers:
            if tensor > 1 and len(offer.devices) > 1 and len(offer.islands) > 1:
                return Veto(
                    "island_too_small",
                    f"{offer.node} would spread {len(offer.devices)} devices "
                    f"over {len(offer.islands)} islands",
                )
        rails = _shared(candidate)
        if len(candidate.offers) > 1 and not rails:
            return Veto("fabric_missing", "its nodes share no fabric")
        left = scores.left_over(candidate)
        value = (1.0 - left) * 10 + len(rails) * 2 + scores.weights_at_hand(candidate) * 1.5
        shared = ", ".join(sorted(rails)) or "one node"
        return Score(value, f"joined by {shared}, {left:.0%} of its devices stay free")


def _shared(candidate: Candidate) -> set[str]:
    first, *others = candidate.offers
    return {
        f"{key}={value}"
        for key, value in first.fabric.items()
        # A bridge has the same address on every machine, and joins none of them.
        if not key.endswith(".address") and all(offer.fabric.get(key) == value for offer in others)
    }
