"""Endpoint loads written down in one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from llmgw.contracts.balancing import Balancer, RoutedRequest
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, ModelName
from llmgw.domain.loads import EngineLoad
from llmgw.router.balancers import llmgw_balancers


@dataclass
class Loaded:
    endpoint: Endpoint
    in_flight: int = 0
    tokens_in_flight: int = 0
    share: float = 1.0
    engine_load: EngineLoad | None = None


@pytest.fixture
def make_load() -> Callable[..., Loaded]:
    def make(id_: str = "e", in_flight: int = 0, **given: Any) -> Loaded:
        endpoint = Endpoint(id=EndpointId(id_), url=f"http://{id_}", models=(ModelName("m"),))
        return Loaded(endpoint, in_flight, **given)

    return make


@pytest.fixture
def make_request() -> Callable[..., RoutedRequest]:
    def make(**given: Any) -> RoutedRequest:
        values = {"model": "m", "session_key": None, "prompt": b"", "body_bytes": 0, "seed": 0.0}
        return RoutedRequest(**{**values, **given})

    return make


@pytest.fixture
def make_balancer() -> Callable[..., Balancer]:
    factories = {factory.name: factory for factory in llmgw_balancers()}

    def make(name: str, **options: Any) -> Balancer:
        return factories[name].make(options)

    return make
