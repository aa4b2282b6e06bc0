"""Fill nodes up, so that whole nodes stay free for what needs them."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw.contracts.placement import Candidate, PlacementRequest, Score, Verdict
from llmgw.control.decide.policies import scores
from llmgw.domain.units import counted


class Pack:
    """The default: the fullest node that still fits, weights at hand breaking near ties.

    Replicas of one model are kept apart where that costs nothing else: losing one node
    should not lose a model that has two replicas.
    """

    name = "pack"

    def rank(
        self,
        request: PlacementRequest,  # noqa: ARG002 - asked of every policy, needed by some
        candidates: Sequence[Candidate],
    ) -> Sequence[Verdict]:
        """Score by devices left over; see the class."""
        return [self._score(candidate) for candidate in candidates]

    def _score(self, candidate: Candidate) -> Score:
        left = scores.left_over(candidate)
        value = (
            (1.0 - left) * 10
            # A large device is kept for what fits on no smaller one.
            - scores.wasted_memory(candidate) * 20
            - (scores.islands_used(candidate) - 1) * 2
            + scores.weights_at_hand(candidate) * 1.5
            + scores.engine_at_hand(candidate) * 0.5
            - scores.same_model(candidate) * 1.0
            # On the CPU nothing is left over or used up: there the emptier node is better.
            - (scores.crowding(candidate) * 0.1 if not candidate.offers[0].devices else 0.0)
        )
        if not candidate.offers[0].devices:
            return Score(value, f"{counted(scores.crowding(candidate), 'replica')} there")
        return Score(value, f"{left:.0%} of its devices stay free")
