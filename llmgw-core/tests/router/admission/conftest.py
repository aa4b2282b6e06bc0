"""Admission over a counted number of slots, and a record of what each request was told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from llmgw.config.server import RouterSettings
from llmgw.contracts.balancing import RoutedRequest
from llmgw.domain.endpoints import Endpoint, ModelState, ModelStatus
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.domain.plans import Refusal
from llmgw.errors import RequestError
from llmgw.router.admission import Admission, Ticket
from llmgw.router.table import ModelRoute, Table, Unavailable, Why
from llmgw.testing.clock import FakeClock


@dataclass(frozen=True)
class Key:
    key_id: str
    revoked: set[str]

    @property
    def is_valid(self) -> bool:
        return self.key_id not in self.revoked


class Slots:
    """A selector with `free` slots per model; None: no endpoint is up."""

    def __init__(self) -> None:
        self.free: dict[str, int | None] = {}
        self.free_by_profile: dict[str, int] = {}

    def reserve(
        self, route: ModelRoute, request: RoutedRequest, *, profile: str | None
    ) -> str | Unavailable:
        if profile is not None:
            if not self.free_by_profile.get(profile):
                return Unavailable(Why.SATURATED)
            self.free_by_profile[profile] -= 1
            return profile
        free = self.free.get(route.name)
        if free is None:
            return Unavailable(Why.NO_ENDPOINT)
        if free == 0:
            return Unavailable(Why.SATURATED)
        self.free[route.name] = free - 1
        return route.name


@dataclass
class Asked:
    """One request and what became of it."""

    name: str
    ready: int = 0
    errors: list[RequestError] = field(default_factory=list)
    ticket: Ticket[str] | None = None

    @property
    def fate(self) -> str:
        if self.errors:
            return str(self.errors[0].code)
        return "ready" if self.ready else "waits"


class Hall:
    """The admission under test."""

    def __init__(self, settings: RouterSettings) -> None:
        self.clock = FakeClock()
        self.slots = Slots()
        self.admission: Admission[str] = Admission(settings, self.slots.reserve, self.clock)
        self.admission.nudges = self
        self.nudged: list[str] = []
        self.served: list[str] = []
        self.revoked: set[str] = set()
        self.statuses: dict[str, ModelStatus] = {}
        self.table = Table()

    def nudge(self, model: ModelName) -> None:
        self.nudged.append(model)

    def publish(self, name: str, state: ModelState, *, free: int | None, **given: Any) -> None:
        """Set a model's state and slots, and tell admission."""
        refusal = given.pop("refusal", None)
        if refusal is not None:
            given["refusal"] = Refusal(code="no_devices", sentence=refusal)
        self.slots.free[name] = free
        self.statuses[name] = ModelStatus(names=(ModelName(name),), state=state, **given)
        self._rebuild()

    def withdraw(self, name: str) -> None:
        del self.statuses[name]
        self._rebuild()

    def _rebuild(self) -> None:
        endpoints = [
            Endpoint(id=EndpointId(name), url="http://x", models=(ModelName(name),))
            for name in self.statuses
            if self.slots.free.get(name) is not None
        ]
        self.table = Table.build(endpoints, self.statuses.values(), Epoch(0))
        self.admission.refresh(self.table)

    def ask(
        self,
        name: str = "r",
        *,
        model: str = "m",
        key: str = "k",
        priority: str = "normal",
        body_bytes: int = 0,
        profile: str | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> Asked:
        route = self.table.find(model)
        assert route is not None
        asked = Asked(name)

        def ready(_slot: str) -> None:
            asked.ready += 1
            self.served.append(name)
            then()

        asked.ticket = self.admission.enter(
            route,
            RoutedRequest(
                model=model, session_key=None, prompt=b"", body_bytes=body_bytes, seed=0.0
            ),
            grant=Key(key, self.revoked),
            priority=self.admission.priority(priority),
            on_ready=ready,
            on_refused=asked.errors.append,
            profile=profile,
        )
        return asked

    def free(self, count: int = 1, model: str = "m") -> None:
        """Give slots back, one after the other."""
        for _ in range(count):
            self.slots.free[model] = (self.slots.free.get(model) or 0) + 1
            self.admission.room([ModelName(model)])

    async def wait(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        self.admission.tick()


@pytest.fixture
def make_hall() -> Callable[..., Hall]:
    def make(**router: Any) -> Hall:
        hall = Hall(RouterSettings.model_validate(router))
        hall.publish("m", ModelState.SERVING, free=0)
        return hall

    return make
