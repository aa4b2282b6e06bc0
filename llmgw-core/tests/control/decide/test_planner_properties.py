"""Whatever happens in whatever order, the planner books nothing twice.

`LLMGW_STEPS` sets how many steps are taken in all, 40 to an example.
"""

from __future__ import annotations

import os
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from llmgw.config.server import ControlSettings
from llmgw.contracts.engine import EngineAdapter
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.plane import ControlPlane
from llmgw.domain.ids import NodeId
from llmgw.domain.replicas import Failure, FailureCause, ShardState
from llmgw.testing import values
from llmgw.testing.clock import FakeClock
from llmgw.testing.dispatch import MemoryDispatcher
from llmgw.testing.fake_adapter import FakeEngineAdapter

NODES = ("a", "b", "c")
nodes = st.sampled_from(NODES)
seconds = st.sampled_from([0.1, 1.0, 6.0, 40.0, 400.0])


class Planner(RuleBasedStateMachine):
    """Three nodes with two devices each, models that want one or two, and bad luck."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.fleet = MemoryDispatcher()
        adapters: dict[str, EngineAdapter] = {values.ENGINE: FakeEngineAdapter()}
        self.plane = ControlPlane(
            ControlSettings(settle=1.0, drain_limit=20.0),
            engines=adapters,
            policies={"pack": Pack()},
            dispatcher=self.fleet,
            clock=self.clock,
            jitter=lambda: 0.0,
        )
        self.fleet.attach(self.plane.reports)
        for name in NODES:
            self.fleet.join(values.inventory(name, devices=2))

    @rule(name=st.sampled_from("mno"), devices=st.sampled_from([1, 2]), count=st.integers(0, 3))
    def change_catalog(self, name: str, devices: int, count: int) -> None:
        rest = [item.model for item in self.plane.view.models() if item.model.name != name]
        scale: Any = {"min": count, "max": max(1, count)}
        model = values.model(name, values.profile(devices=devices), replicas=scale)
        self.plane.set_catalog([*rest, model] if count else rest)

    @rule(after_s=seconds)
    def pass_time(self, after_s: float) -> None:
        anyio.run(self._turn, after_s)

    async def _turn(self, after_s: float) -> None:
        await self.clock.advance(after_s)
        self.fleet.beat()
        await self.plane.step()

    @rule()
    def let_engines_get_on(self) -> None:
        self.fleet.settle()

    @rule(node=nodes)
    def cut(self, node: str) -> None:
        if self.fleet.is_connected(NodeId(node)):
            self.fleet.cut(NodeId(node))

    @rule(node=nodes)
    def reconnect(self, node: str) -> None:
        self.fleet.reconnect(NodeId(node))

    @rule(node=nodes, cause=st.sampled_from(list(FailureCause)), gives_up=st.booleans())
    def crash(self, node: str, cause: FailureCause, gives_up: bool) -> None:
        for shard, report in list(self.fleet.nodes[NodeId(node)].shards.items())[:1]:
            if report.shard.state in (ShardState.STARTING, ShardState.READY):
                state = ShardState.FAILED if gives_up else ShardState.BACKOFF
                failure = Failure(cause=cause, message="bad luck")
                self.fleet.enter(shard, state, failure=failure, restarts=report.shard.restarts + 1)

    @rule(node=nodes)
    def forget_assignments(self, node: str) -> None:
        self.fleet.nodes[NodeId(node)].shards.clear()
        self.fleet.reconnect(NodeId(node))

    @invariant()
    def no_node_was_asked_for_a_device_or_port_twice(self) -> None:
        for node in self.fleet.nodes.values():
            assert [item.code for item in node.rejections] == []

    @invariant()
    def orders_of_replicas_that_run_are_disjoint(self) -> None:
        taken: set[object] = set()
        for record in self.plane.view.replicas():
            for node, spec in record.shards:
                things = {(node, thing) for thing in (*spec.devices, *spec.ports)}
                assert not taken & things
                taken |= things


STEPS = 40  #: of an example
EXAMPLES = max(1, int(os.environ.get("LLMGW_STEPS", "10000")) // STEPS)
Planner.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestPlanner = pytest.mark.timeout(120)(Planner.TestCase)
