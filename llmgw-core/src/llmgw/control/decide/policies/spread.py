"""Keep replicas apart, so that one node's end takes as little as possible with it."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw.contracts.placement import Candidate, PlacementRequest, Score, Verdict
from llmgw.control.decide.policies import scores
from llmgw.domain.units import counted


class Spread:
    """The emptiest node, one without the model first."""

    name = "spread"

    def rank(
        self,
        request: PlacementRequest,  # noqa: ARG002 - asked of every policy, needed by some
        candidates: Sequence[Candidate],
    ) -> Sequence[Verdict]:
        """Score by what else runs there; see the class."""
        return [self._score(candidate) for candidate in candidates]

    def _score(self, candidate: Candidate) -> Score:
        same, crowd = scores.same_model(candidate), scores.crowding(candidate)
        value = (
            -10.0 * same
            - 1.0 * crowd
            + 2.0 * scores.left_over(candidate)
            + 0.25 * scores.weights_at_hand(candidate)
        )
        return Score(value, f"{counted(crowd, 'replica')} there, {same} of this model")
