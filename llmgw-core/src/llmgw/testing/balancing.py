"""The contract of balancers as tests.

from llmgw.testing.balancing import BalancerContract

class TestMine(BalancerContract):
    factory = MyFactory()
    rejected = (({"region": 7}, "options.region"),)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.contracts.balancing import Balancer, BalancerFactory, HasIndex, RoutedRequest
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, ModelName, safe_name_problem
from llmgw.domain.loads import EngineLoad
from llmgw.errors import ConfigError

__all__ = ["BalancerContract", "LoadOf"]

_MODEL = ModelName("m")
# A kit is subclassed; hypothesis takes the same test under several classes for a mistake.
_SHARED = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass
class LoadOf:
    """What a balancer sees of one endpoint, written down."""

    endpoint: Endpoint
    in_flight: int = 0
    tokens_in_flight: int = 0
    share: float = 1.0
    engine_load: EngineLoad | None = None

    @staticmethod
    def named(id_: str) -> LoadOf:
        """Return an idle endpoint of this id."""
        return LoadOf(Endpoint(id=EndpointId(id_), url=f"http://{id_}", models=(_MODEL,)))


_READINGS = st.none() | st.builds(
    EngineLoad,
    running=st.none() | st.integers(0, 500),
    waiting=st.none() | st.integers(0, 500),
    kv_used=st.none() | st.floats(0, 1),
)
_LOADS = st.lists(
    st.builds(
        LoadOf,
        endpoint=st.sampled_from([LoadOf.named(id_).endpoint for id_ in "abcdefgh"]),
        in_flight=st.integers(0, 500),
        tokens_in_flight=st.integers(0, 10_000_000),
        share=st.floats(0.01, 100),
        engine_load=_READINGS,
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda load: load.endpoint.id,
)
_REQUESTS = st.builds(
    RoutedRequest,
    model=st.just("m"),
    session_key=st.none() | st.text(max_size=20),
    prompt=st.binary(max_size=200) | st.binary(min_size=1, max_size=8).map(lambda part: part * 600),
    body_bytes=st.integers(0, 64 * 1024 * 1024),
    seed=st.floats(0, 1, exclude_max=True),
)


class BalancerContract:
    """Subclass it, give the class variables, and pytest finds the rest."""

    factory: ClassVar[BalancerFactory]
    options: ClassVar[Mapping[str, object]] = {}
    rejected: ClassVar[tuple[tuple[Mapping[str, object], str], ...]] = ()  #: options, path

    def make(self) -> Balancer:
        return self.factory.make(self.options)

    def test_its_name_can_be_written_in_a_routing_profile(self) -> None:
        assert safe_name_problem(self.factory.name) is None

    def test_it_says_how_much_of_a_prompt_it_looks_at(self) -> None:
        assert self.make().prompt_bytes >= 0

    @_SHARED
    @given(st.lists(st.tuples(_REQUESTS, _LOADS), max_size=8))
    def test_it_always_chooses_one_of_the_usable(
        self, asked: list[tuple[RoutedRequest, list[LoadOf]]]
    ) -> None:
        """Whatever was asked before, and whichever endpoints have come and gone since."""
        balancer = self.make()
        for request, usable in asked:
            assert balancer.choose(request, usable) in range(len(usable))

    @_SHARED
    @given(st.lists(st.tuples(_REQUESTS, _LOADS), min_size=1, max_size=5))
    def test_it_goes_on_after_forgetting_any_endpoint(
        self, asked: list[tuple[RoutedRequest, list[LoadOf]]]
    ) -> None:
        balancer = self.make()
        for request, usable in asked:
            balancer.forget(usable[-1].endpoint.id)
            balancer.forget(EndpointId("never seen"))
            assert balancer.choose(request, usable) in range(len(usable))

    @_SHARED
    @given(_REQUESTS, _LOADS)
    def test_two_of_one_make_do_not_share_what_they_learn(
        self, request_: RoutedRequest, usable: list[LoadOf]
    ) -> None:
        first, second = self.make(), self.make()
        fresh = first.choose(request_, usable)
        for _ in range(3):
            first.choose(request_, usable)
        assert second.choose(request_, usable) == fresh

    def test_an_index_says_how_large_it_is(self) -> None:
        balancer = self.make()
        if isinstance(balancer, HasIndex):
            assert balancer.index_size == 0

    def test_an_unknown_option_is_named_with_its_path(self) -> None:
        self._assert_rejected({**self.options, "no_such_option": 1}, "options.no_such_option")

    def test_bad_options_are_named_with_their_paths(self) -> None:
        for options, path in self.rejected:
            self._assert_rejected(options, path)

    def _assert_rejected(self, options: Mapping[str, object], path: str) -> None:
        with pytest.raises(ConfigError) as caught:
            self.factory.make(options)
        assert path in [problem.path for problem in caught.value.problems]
