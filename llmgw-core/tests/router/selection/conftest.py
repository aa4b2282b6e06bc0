"""A selector over endpoints made in one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmgw.config.server import RouterSettings
from llmgw.contracts.balancing import RoutedRequest
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.router.balancers import llmgw_balancers
from llmgw.router.selection import Outcome, Reservation, Selector, compile_profiles
from llmgw.router.selection.state import Condition
from llmgw.router.table import ModelRoute, TableMaker, Unavailable
from llmgw.testing.clock import FakeClock


class Bench:
    """One model `m`, its selector and a clock that stands still."""

    def __init__(self, settings: RouterSettings) -> None:
        self.clock = FakeClock()
        balancers = {factory.name: factory for factory in llmgw_balancers()}
        self.selector = Selector(settings, compile_profiles(settings, balancers), self.clock)
        self.maker = TableMaker()

    def publish(self, *endpoints: Endpoint) -> None:
        self.table = self.maker.make(endpoints, (), Epoch(0))
        self.selector.update(self.table)

    @property
    def route(self) -> ModelRoute:
        route = self.table.find("m")
        assert route is not None
        return route

    def ask(self, **given: Any) -> Reservation | Unavailable:
        seed = given.pop("seed", 0.0)
        session = given.pop("session", None)
        request = RoutedRequest(
            model="m",
            session_key=session,
            prompt=given.pop("prompt", b""),
            body_bytes=given.pop("body_bytes", 400),
            seed=seed,
            suspect=given.pop("suspect", b""),
        )
        return self.selector.reserve(self.route, request, **given)

    def take(self, **given: Any) -> Reservation:
        got = self.ask(**given)
        assert isinstance(got, Reservation), got
        return got

    @staticmethod
    def all_but(*ids: str) -> frozenset[EndpointId]:
        """Return what to exclude for one of these endpoints to be chosen."""
        return frozenset(EndpointId(id_) for id_ in "abcd" if id_ not in ids)

    def fail(self, id_: str, times: int, outcome: Outcome = Outcome.RESET) -> None:
        """Let so many requests to one endpoint end like this, if it gets them."""
        for _ in range(times):
            if isinstance(got := self.ask(exclude=self.all_but(id_)), Reservation):
                got.release(outcome)

    def condition(self, id_: str) -> Condition:
        state = self.selector.state(EndpointId(id_))
        assert state is not None
        return state.condition


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    def make(**router: Any) -> Bench:
        return Bench(RouterSettings.model_validate(router))

    return make


@pytest.fixture
def make_endpoint() -> Callable[..., Endpoint]:
    def make(id_: str, **given: Any) -> Endpoint:
        models = given.pop("models", (ModelName("m"),))
        return Endpoint(id=EndpointId(id_), url=f"http://{id_}", models=models, **given)

    return make
