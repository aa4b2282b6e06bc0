"""A plugin that fails in its choice takes nobody's request with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from llmgw.config.server import RouterSettings
from llmgw.contracts.balancing import Balancer, EndpointLoad, RoutedRequest
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, Epoch
from llmgw.router.selection import Outcome, Reservation, Selector, compile_profiles
from llmgw.router.table import TableMaker
from llmgw.testing.clock import FakeClock

MakeEndpoint = Callable[..., Endpoint]


class Failing:
    """Chooses as it is told, which may be nobody."""

    prompt_bytes = 0

    def __init__(self, choice: int | None) -> None:
        self._choice = choice

    def choose(self, request: RoutedRequest, usable: Sequence[EndpointLoad]) -> int:
        if self._choice is None:
            raise ZeroDivisionError
        return self._choice

    def forget(self, endpoint: EndpointId) -> None:
        raise KeyError(endpoint)


class FailingFactory:
    name = "failing"

    def __init__(self, choice: int | None) -> None:
        self._choice = choice

    def make(self, options: Mapping[str, object]) -> Balancer:
        return Failing(self._choice)


@pytest.mark.parametrize("choice", [None, 7])
def test_a_balancer_that_fails_is_said_once_and_the_quietest_endpoint_taken(
    make_endpoint: MakeEndpoint, caplog: pytest.LogCaptureFixture, choice: int | None
) -> None:
    settings = RouterSettings(default_profile="failing")
    profiles = compile_profiles(settings, {"failing": FailingFactory(choice)})
    selector, maker = Selector(settings, profiles, FakeClock()), TableMaker()
    request = RoutedRequest(model="m", session_key=None, prompt=b"", body_bytes=0, seed=0.0)

    def take(*ids: str) -> list[Any]:
        table = maker.make([make_endpoint(id_) for id_ in ids], (), Epoch(0))
        selector.update(table)
        route = table.find("m")
        assert route is not None
        return [selector.reserve(route, request) for _ in range(4)]

    with caplog.at_level(logging.ERROR):
        taken = take("a", "b")
        assert sorted(got.endpoint.id for got in taken) == ["a", "a", "b", "b"]
        for got in taken:
            assert isinstance(got, Reservation)
            got.release(Outcome.OK)
        assert {got.endpoint.id for got in take("b")} == {"b"}
    assert [record.message for record in caplog.records] == ["balancer failed"]
