"""Our own policies pass the kit that authors of others use, and careless ones do not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from llmgw.contracts.placement import (
    Candidate,
    PlacementPolicy,
    PlacementRequest,
    Score,
    Verdict,
    Veto,
)
from llmgw.control.decide.policies.fabric import Fabric
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.decide.policies.spread import Spread
from llmgw.testing.placement import PolicyContract


class TestPack(PolicyContract):
    policy = Pack()


class TestSpread(PolicyContract):
    policy = Spread()


class TestFabric(PolicyContract):
    policy = Fabric()


class Careless:
    """Answers with whatever verdicts it was made with, one for each candidate."""

    name = "careless"

    def __init__(self, *verdicts: Verdict) -> None:
        self._verdicts = itertools.cycle(verdicts)

    def rank(
        self,
        request: PlacementRequest,
        candidates: Sequence[Candidate],
    ) -> Sequence[Verdict]:
        return [next(self._verdicts) for _ in candidates]


class Short(Careless):
    def rank(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> Sequence[Verdict]:
        return super().rank(request, candidates)[1:]


class Reads(Careless):
    def rank(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> Sequence[Verdict]:
        Path("/proc/self/status").read_text()
        return super().rank(request, candidates)


GOOD = Score(1.0, "it fits")


@pytest.mark.parametrize(
    "policy",
    [
        Careless(Score(float("nan"), "it fits")),
        Careless(Score(1.0, "")),
        Careless(Score(1.0, "two\nlines")),
        Careless(Veto("Not Here", "because")),
        Careless(Veto("not_here", " ")),
        Short(GOOD),
        Reads(GOOD),
    ],
    ids=["nan", "silent", "lines", "code", "sentence", "short", "reads"],
)
def test_verdicts_that_cannot_be_shown_break_the_rule(policy: PlacementPolicy) -> None:
    kit = _kit(policy)
    with pytest.raises(AssertionError):
        kit.test_each_candidate_gets_a_verdict_that_can_be_shown()


def test_a_policy_that_remembers_breaks_the_rule() -> None:
    kit = _kit(Careless(GOOD, GOOD, Score(2.0, "another")))
    with pytest.raises((AssertionError, ExceptionGroup)):  # the latter where a replay differs, too
        kit.test_the_same_question_gets_the_same_answer_and_stays_as_it_was()


def _kit(policy_: PlacementPolicy) -> PolicyContract:
    class Kit(PolicyContract):
        policy = policy_

    return Kit()
