"""Whatever happens in whatever order, the promises of admission hold.

`LLMGW_STEPS` sets how many steps are taken in all, 100 to an example.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llmgw.config.server import RouterSettings
from llmgw.contracts.balancing import RoutedRequest
from llmgw.domain.endpoints import Endpoint, ModelState, ModelStatus
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.errors import RequestError
from llmgw.router.admission import Admission, Ticket
from llmgw.router.table import ModelRoute, Table, Unavailable, Why

EXAMPLES = max(1, int(os.environ.get("LLMGW_STEPS", "4000")) // 100)
ROUTER = RouterSettings.model_validate({"queue": {"length": 6}})
MODELS = ("m", "n")


class Standing:
    """A clock moved by hand, without an event loop."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, delay_s: float) -> None:
        raise AssertionError("admission never waits")


@dataclass(frozen=True)
class Key:
    key_id: str
    is_valid: bool = True


class Slot:
    """One of a model's slots, on the way to a request."""

    def __init__(self, model: str) -> None:
        self.model = model


@dataclass(eq=False)
class Asked:
    entered: float
    calls: int = 0
    left: bool = False
    slot: Slot | None = None
    error: RequestError | None = None
    ticket: Ticket[Slot] | None = None


class Waiting(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Standing()
        self.free: dict[str, int] = {"m": 2, "n": 1}
        self.up = {"m": True, "n": True}
        self.states = dict.fromkeys(MODELS, ModelState.SERVING)
        self.asked: list[Asked] = []
        self.admission: Admission[Slot] = Admission(ROUTER, self.reserve, self.clock)
        self.table = Table()
        self.publish("m", ModelState.SERVING, True)

    def reserve(
        self, route: ModelRoute, request: RoutedRequest, *, profile: str | None
    ) -> Slot | Unavailable:
        if not self.up[route.name]:
            return Unavailable(Why.NO_ENDPOINT)
        if not self.free[route.name]:
            return Unavailable(Why.SATURATED)
        self.free[route.name] -= 1
        return Slot(route.name)

    @rule(model=st.sampled_from(MODELS), state=st.sampled_from(ModelState), up=st.booleans())
    def publish(self, model: str, state: ModelState, up: bool) -> None:
        self.states[model] = state
        self.up[model] = up
        self.table = Table.build(
            [
                Endpoint(id=EndpointId(name), url="http://x", models=(ModelName(name),))
                for name in MODELS
                if self.up[name]
            ],
            [ModelStatus(names=(ModelName(name),), state=self.states[name]) for name in MODELS],
            Epoch(0),
        )
        self.admission.refresh(self.table)

    @rule(
        model=st.sampled_from(MODELS),
        key=st.sampled_from("kl"),
        priority=st.integers(0, 2),
        body_bytes=st.sampled_from([0, 100_000]),
        bounces=st.booleans(),
    )
    def ask(self, model: str, key: str, priority: int, body_bytes: int, bounces: bool) -> None:
        route = self.table.find(model)
        assert route is not None
        asked = Asked(self.clock.now)
        self.asked.append(asked)

        def ready(slot: Slot) -> None:
            asked.calls += 1
            asked.slot = slot
            if bounces:  # the client left in this very moment
                self.give_back(asked)

        def refused(error: RequestError) -> None:
            asked.calls += 1
            asked.error = error

        asked.ticket = self.admission.enter(
            route,
            RoutedRequest(
                model=model, session_key=None, prompt=b"", body_bytes=body_bytes, seed=0.0
            ),
            grant=Key(key),
            priority=priority,
            on_ready=ready,
            on_refused=refused,
        )

    def give_back(self, asked: Asked) -> None:
        assert asked.slot is not None
        model, asked.slot = asked.slot.model, None
        self.free[model] += 1
        self.admission.room([ModelName(model)])

    @precondition(lambda self: any(asked.slot for asked in self.asked))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.give_back(data.draw(st.sampled_from([item for item in self.asked if item.slot])))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.asked))
        asked.left = asked.left or asked.calls == 0
        assert asked.ticket is not None
        asked.ticket.leave()

    @rule(seconds=st.sampled_from([0.1, 10.0, 31.0, 301.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.admission.tick()

    @invariant()
    def each_request_has_one_fate(self) -> None:
        waiting = [asked for asked in self.asked if not asked.calls and not asked.left]
        for asked in self.asked:
            assert asked.calls <= (0 if asked.left else 1)
            if asked.error is not None:
                assert asked.error.code
                assert asked.error.retry_after_s is not None
                assert asked.error.retry_after_s >= 1
                assert asked.error.retry_after_s == int(asked.error.retry_after_s)
        assert sum(self.admission.queued().values()) == len(waiting)
        assert all(count <= 6 for count in self.admission.queued().values())

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        for model, count in self.admission.queued().items():
            assert not (count and self.up[model] and self.free[model])

    @invariant()
    def slots_are_neither_lost_nor_made(self) -> None:
        held = [asked.slot.model for asked in self.asked if asked.slot]
        assert self.free["m"] + held.count("m") == 2
        assert self.free["n"] + held.count("n") == 1

    def teardown(self) -> None:
        self.clock.now += 1000
        self.admission.tick()
        assert self.admission.queued() == {}
        for asked in self.asked:
            if asked.slot:
                self.give_back(asked)
        assert self.free == {"m": 2, "n": 1}


TestWaiting = Waiting.TestCase
TestWaiting.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=100, deadline=None, print_blob=True
)
