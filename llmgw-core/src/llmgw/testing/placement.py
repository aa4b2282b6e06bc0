"""The contract of placement policies as tests.

    from llmgw.testing.placement import PolicyContract

    class TestMine(PolicyContract):
        policy = MyPolicy()

Every test runs with a guard that fails on any I/O: a policy ranks, core acts.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from llmgw.contracts.placement import (
    Candidate,
    NodeOffer,
    PlacementPolicy,
    PlacementRequest,
    Score,
    Veto,
)
from llmgw.domain.ids import DeviceId, NodeId, safe_name_problem
from llmgw.testing import values
from llmgw.testing.no_io import no_io

__all__ = ["PolicyContract", "offer", "request"]


def offer(node: str, **changes: Any) -> NodeOffer:
    """Return the offer of an idle node without devices; every field can be overridden."""
    fields: dict[str, Any] = {
        "node": NodeId(node),
        "devices": (),
        "free_devices": 0,
        "total_devices": 0,
        "free_memory_mib": None,
        "free_ram_mib": 65536,
        "same_model": 0,
        "replicas": 0,
        "has_weights": False,
        "has_engine": True,
        "islands": frozenset(),
    }
    return NodeOffer(**(fields | changes))


def request(model: str, **changes: Any) -> PlacementRequest:
    """Return the request for one replica of this model; changes are of its only profile."""
    profile = values.profile(**changes)
    return PlacementRequest(model=values.model(model, profile), profile=profile)


_WORDS = st.text("abcxyz-.0123456789", min_size=1, max_size=8)
_REQUESTS = st.builds(
    request,
    st.sampled_from(["chat", "org/chat-70b", "a.b-c_d"]),
    labels=st.dictionaries(_WORDS, _WORDS, max_size=2),
)
_COUNTS = st.integers(0, 8)


@st.composite
def _offers(draw: st.DrawFn) -> NodeOffer:
    node = draw(st.sampled_from(["a", "b", "gpu-01", "n.example"]))
    free = draw(_COUNTS)
    taken = draw(_COUNTS)
    offered = draw(st.integers(0, free))
    return offer(
        node,
        devices=tuple(DeviceId(f"{node}-{index}") for index in range(offered)),
        free_devices=free,
        total_devices=free + taken,
        free_memory_mib=draw(st.none() | st.integers(0, 10**6)),
        free_ram_mib=draw(st.none() | st.integers(0, 10**7)),
        same_model=draw(_COUNTS),
        replicas=draw(_COUNTS),
        has_weights=draw(st.booleans()),
        has_engine=draw(st.booleans()),
        islands=frozenset(draw(st.lists(_WORDS, max_size=2))),
        fabric=draw(st.dictionaries(_WORDS, _WORDS, max_size=2)),
        labels=draw(st.dictionaries(_WORDS, _WORDS, max_size=3)),
    )


_CANDIDATES = st.lists(
    st.builds(
        lambda offers: Candidate(offers=tuple(offers)), st.lists(_offers(), min_size=1, max_size=3)
    ),
    min_size=1,
    max_size=6,
)
# A kit is subclassed; hypothesis takes the same test under several classes for a mistake. To
# explain which parts of a case matter takes minutes for cases as large as these.
_SHARED = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)


class PolicyContract:
    """Subclass it, give the class variable, and pytest finds the rest."""

    policy: ClassVar[PlacementPolicy]

    def test_its_name_can_be_written_in_the_settings(self) -> None:
        assert safe_name_problem(self.policy.name) is None

    @_SHARED
    @given(_REQUESTS, _CANDIDATES)
    def test_each_candidate_gets_a_verdict_that_can_be_shown(
        self, asked: PlacementRequest, candidates: Sequence[Candidate]
    ) -> None:
        with no_io():
            verdicts = self.policy.rank(asked, candidates)
        assert len(verdicts) == len(candidates)
        for verdict in verdicts:
            if isinstance(verdict, Score):
                assert math.isfinite(verdict.value)
                says = verdict.because
            else:
                assert isinstance(verdict, Veto)
                assert re.fullmatch(r"[a-z][a-z0-9_]*", verdict.code)
                says = verdict.sentence
            assert says.strip()
            assert says.isprintable(), "it is shown in one line"

    @_SHARED
    @given(_REQUESTS, _CANDIDATES)
    def test_the_same_question_gets_the_same_answer_and_stays_as_it_was(
        self, asked: PlacementRequest, candidates: Sequence[Candidate]
    ) -> None:
        before = copy.deepcopy((asked, candidates))
        first = list(self.policy.rank(asked, candidates))
        assert list(self.policy.rank(asked, candidates)) == first
        assert (asked, candidates) == before
