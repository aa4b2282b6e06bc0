"""Shortest expected wait, from what the engines say of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from llmgw.config.section import Section
from llmgw.contracts.balancing import Balancer, EndpointLoad, RoutedRequest
from llmgw.domain.ids import EndpointId
from llmgw.domain.loads import EngineLoad
from llmgw.router.balancers.least_outstanding import least_outstanding
from llmgw.router.balancers.options import read_options

_KV_FULL = 0.99
"""The pressure term grows without limit towards a full cache; it is cut off here."""


class LoadOptions(Section):
    """Turns an engine's figures into seconds."""

    tokens_per_s: Annotated[float, Field(gt=0)] = 2000.0
    """Prompt tokens that one endpoint of weight 1 computes in a second."""
    tokens_per_request: Annotated[float, Field(gt=0)] = 1024.0
    """Assumed prompt of a request that waits inside an engine: engines count requests only."""
    running_s: Annotated[float, Field(ge=0)] = 0.01
    """Delay that each running request adds to the others."""
    kv_pressure_s: Annotated[float, Field(ge=0)] = 0.15
    """Times k/(1-k), where k is the used part of the KV cache."""


class _Credit:
    """What was sent to an endpoint since its newest reading, which cannot show it yet."""

    __slots__ = ("reading", "requests", "tokens")

    def __init__(self, reading: EngineLoad) -> None:
        self.reading = reading
        self.requests = 0
        self.tokens = 0.0


class Load:
    """Scores by waiting requests, KV cache and what was sent since the last reading.

    Without that credit everything that arrives between two readings would run to the one
    endpoint that looked idle in the first. An endpoint without a reading is judged by this
    router's own counts; if none has one, this is `least_outstanding`.
    """

    prompt_bytes = 0
    reads_engine_load = True

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._credits: dict[EndpointId, _Credit] = {}

    def choose(self, request: RoutedRequest, usable: Sequence[EndpointLoad]) -> int:
        if len(usable) == 1:
            return 0
        readings = [load.engine_load for load in usable]
        if all(reading is None for reading in readings):
            return least_outstanding(request, usable)
        count = len(usable)
        start = int(request.seed * count)
        best, shortest = start, float("inf")
        for step in range(count):
            place = (start + step) % count
            wait_s = self._wait_s(usable[place], readings[place])
            if wait_s < shortest:
                best, shortest = place, wait_s
        if (reading := readings[best]) is not None:
            credit = self._credit(usable[best].endpoint.id, reading)
            credit.requests += 1
            credit.tokens += request.body_bytes / 4
        return best

    def forget(self, endpoint: EndpointId) -> None:
        self._credits.pop(endpoint, None)

    def _wait_s(self, load: EndpointLoad, reading: EngineLoad | None) -> float:
        options = self._options
        if reading is None:
            tokens = float(load.tokens_in_flight)
            running = load.in_flight
            pressure = 0.0
        else:
            credit = self._credit(load.endpoint.id, reading)
            tokens = (reading.waiting or 0) * options.tokens_per_request + credit.tokens
            running = (reading.running or 0) + credit.requests
            used = min(reading.kv_used or 0.0, _KV_FULL)
            pressure = options.kv_pressure_s * used / (1.0 - used)
        work_s = tokens / options.tokens_per_s + options.running_s * (running + 1)
        return work_s / load.share + pressure

    def _credit(self, endpoint: EndpointId, reading: EngineLoad) -> _Credit:
        credit = self._credits.get(endpoint)
        if credit is None or credit.reading is not reading:
            credit = self._credits[endpoint] = _Credit(reading)
        return credit


class LoadFactory:
    name = "load"

    def make(self, options: Mapping[str, object]) -> Balancer:
        return Load(read_options(self.name, LoadOptions, options))
