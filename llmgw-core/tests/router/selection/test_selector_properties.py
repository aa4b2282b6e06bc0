"""Whatever happens in whatever order, the promises of selection hold.

`LLMGW_STEPS` sets how many steps are taken in all, 100 to an example.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmgw.config.server import RouterSettings
from llmgw.contracts.balancing import RoutedRequest
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.domain.loads import EngineLoad
from llmgw.router.balancers import llmgw_balancers
from llmgw.router.selection import EndpointState, Outcome, Reservation, Selector, compile_profiles
from llmgw.router.table import Table, TableMaker, Why

EXAMPLES = max(1, int(os.environ.get("LLMGW_STEPS", "10000")) // 100)
BALANCERS = {factory.name: factory for factory in llmgw_balancers()}
ROUTER = RouterSettings.model_validate(
    {"profiles": {"pool": {"pools": ["x"]}}, "ejection": {"failures": 2}}
)
PROFILES = compile_profiles(ROUTER, BALANCERS)

IDS = ("a", "b", "c", "d", "e")
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
        raise AssertionError("selection never waits")


ENDPOINTS = st.lists(
    st.builds(
        Endpoint,
        id=st.sampled_from([EndpointId(id_) for id_ in IDS]),
        url=st.just("http://x"),
        models=st.sampled_from(
            [(ModelName("m"),), (ModelName("n"),), (ModelName("m"), ModelName("n"))]
        ),
        incarnation=st.sampled_from(["1", "2"]),
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        priority=st.sampled_from([0, 0, 1]),
        pool=st.sampled_from(["x", "y"]),
        max_inflight=st.sampled_from([None, 1, 3]),
        draining=st.sampled_from([False, False, False, True]),
    ),
    max_size=len(IDS),
    unique_by=lambda endpoint: endpoint.id,
)


class Selection(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Standing()
        self.selector = Selector(ROUTER, PROFILES, self.clock)
        self.held: list[Reservation] = []
        self.maker, self.table = TableMaker(), Table()
        self.endpoints: list[Endpoint] = []
        self.ejections: dict[str, float] = {}

    @initialize(endpoints=ENDPOINTS)
    def begin(self, endpoints: list[Endpoint]) -> None:
        self.publish(endpoints)

    @rule(endpoints=ENDPOINTS)
    def publish(self, endpoints: list[Endpoint]) -> None:
        self.endpoints = endpoints
        self.table = self.maker.make(endpoints, (), Epoch(0))
        self.selector.update(self.table)

    @rule(endpoints=ENDPOINTS.filter(bool))
    def publish_one_change(self, endpoints: list[Endpoint]) -> None:
        newest = endpoints[0]
        self.publish([*(item for item in self.endpoints if item.id != newest.id), newest])

    @rule(
        model=st.sampled_from(MODELS),
        profile=st.sampled_from([None, "pool", *BALANCERS]),
        exclude=st.frozensets(st.sampled_from([EndpointId(id_) for id_ in IDS]), max_size=2),
        seed=st.floats(0, 1, exclude_max=True),
        suspect=st.sampled_from([b"", b"", b"1", b"2"]),
    )
    def ask(
        self,
        model: str,
        profile: str | None,
        exclude: frozenset[EndpointId],
        seed: float,
        suspect: bytes,
    ) -> None:
        route = self.table.find(model)
        if route is None:
            return
        request = RoutedRequest(
            model=model,
            session_key=str(seed)[:3],
            prompt=b"%03d" % int(seed * 3) * 1000,
            body_bytes=int(seed * 10_000),
            seed=seed,
            suspect=suspect,
        )
        # What is due by now is done first, so that the states are those of the decision.
        self.selector.advance(self.clock.now)
        states = {state.endpoint.id: state for state in self.selector.states()}
        members = [states[endpoint.id] for endpoint in route.endpoints]
        healthy = {state.endpoint.id for state in members if state.is_healthy}
        ready = {state.endpoint.id for state in members if state.is_ready}
        before = {id_: (state.in_flight, state.probe) for id_, state in states.items()}
        company = [one.state for one in self.held if suspect and one.suspect == suspect]
        got = self.selector.reserve(route, request, exclude=exclude, profile=profile)
        in_panic = bool(ready) and (not healthy or len(healthy) < 0.5 * len(ready))
        if not isinstance(got, Reservation):
            usable = {
                id_
                for id_ in healthy - exclude
                if states[id_].in_flight < states[id_].capacity
                and (profile != "pool" or states[id_].endpoint.pool == "x")
            }
            if company:
                usable &= {id_ for id_, state in states.items() if state in company}
            assert not usable, "refused although a healthy endpoint had room"
            assert got.why is not Why.HELD_BACK or company
            assert (got.why is Why.NO_ENDPOINT) <= (profile == "pool" or not ready)
            return
        chosen = got.endpoint
        assert chosen.id in ready
        assert chosen.id not in exclude
        assert model in chosen.models
        assert profile != "pool" or chosen.pool == "x"
        in_flight, probe = before[chosen.id]
        assert chosen.max_inflight is None or in_flight < chosen.max_inflight
        assert not company or got.state in company, "its like runs elsewhere"
        if not in_panic and not company:
            state = states[chosen.id]
            assert chosen.id in healthy or (state.half_open and probe is None)
            better = {
                id_
                for id_ in healthy - exclude
                if states[id_].endpoint.priority > chosen.priority
                and before[id_][0] < states[id_].capacity
                and (profile != "pool" or states[id_].endpoint.pool == "x")
            }
            assert not better, "a higher priority had room"
        self.held.append(got)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome), times=st.integers(1, 3))
    def end(self, data: st.DataObject, outcome: Outcome, times: int) -> None:
        got = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        members = self._members_of(got.state)
        was_out = got.state.is_ejected
        for _ in range(times):
            got.release(outcome)
        if got.state.is_ejected and not was_out:
            for states in members:
                ready = [state for state in states if state.is_ready]
                out = [state for state in ready if state.is_ejected]
                assert len(out) <= 0.5 * len(ready), "more than half are ejected"
                assert any(state.is_healthy for state in ready), "the last one was ejected"

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def first_byte(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.held)).first_byte()

    @rule(
        id_=st.sampled_from(IDS), good=st.booleans(), which=st.sampled_from(["health", "progress"])
    )
    def check(self, id_: str, good: bool, which: str) -> None:
        state = self.selector.state(EndpointId(id_))
        if state is not None and which == "health":
            self.selector.set_answering(state, good, is_gone=not good and id_ in "ab")
        elif state is not None:
            self.selector.set_stuck(state, not good)

    @rule(id_=st.sampled_from(IDS), waiting=st.one_of(st.none(), st.integers(0, 50)))
    def read(self, id_: str, waiting: int | None) -> None:
        if (state := self.selector.state(EndpointId(id_))) is not None:
            load = None if waiting is None else EngineLoad(running=1, waiting=waiting, kv_used=0.4)
            self.selector.set_load(state, load)

    @rule(seconds=st.sampled_from([0.0, 0.3, 5.0, 29.9, 31.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def counters_are_those_of_the_held_reservations(self) -> None:
        expected: dict[EndpointState, int] = {}
        for got in self.held:
            expected[got.state] = expected.get(got.state, 0) + 1
        for state in {*self.selector.states(), *expected}:
            assert state.in_flight == expected.get(state, 0)
            assert state.tokens_in_flight >= 0
            if not state.in_flight:
                assert state.tokens_in_flight == 0
        in_flight = sum(usage.in_flight for usage in self.selector.usage().values())
        assert in_flight == len(self.held)

    @invariant()
    def states_are_those_of_the_table(self) -> None:
        members = [
            (endpoint, half.name)
            for route in self.table.routes
            for half in route.halves
            for endpoint in half.endpoints
        ]
        states = self.selector.states()
        assert sorted((state.endpoint.id, line) for state in states for line in state.lines) == (
            sorted((endpoint.id, line) for endpoint, line in members)
        )
        for endpoint, _ in members:
            state = self.selector.state(endpoint.id)
            assert state is not None
            assert state.endpoint == endpoint

    @invariant()
    def shares_are_within_the_weight(self) -> None:
        for state in self.selector.states():
            weight = state.endpoint.weight
            assert 0.0999 * weight <= state.share <= weight

    def teardown(self) -> None:
        for got in self.held:
            got.release(Outcome.OK)
        self.held = []
        self.counters_are_those_of_the_held_reservations()
        for state in self.selector.states():
            assert state.probe is None

    def _members_of(self, state: EndpointState) -> list[list[EndpointState]]:
        states = {item.endpoint.id: item for item in self.selector.states()}
        return [
            [states[endpoint.id] for endpoint in route.endpoints]
            for route in self.table.routes
            if states.get(state.endpoint.id) is state and state.endpoint in route.endpoints
        ]


TestSelection = pytest.mark.timeout(120)(Selection.TestCase)
Selection.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=100, deadline=None, print_blob=True
)
