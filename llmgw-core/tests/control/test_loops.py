"""The loops with their timers, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest

from llmgw.config.server import ControlSettings
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.plane import ControlPlane
from llmgw.domain.endpoints import Endpoint, ModelStatus
from llmgw.domain.ids import Epoch
from llmgw.errors import TransientError
from llmgw.testing import values
from llmgw.testing.clock import FakeClock
from llmgw.testing.dispatch import MemoryDispatcher
from llmgw.testing.fake_adapter import FakeEngineAdapter

pytestmark = pytest.mark.anyio


class Flaky:
    """A sink that fails as often as it is told, then takes everything."""

    name = "flaky"

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.states: list[tuple[str, ...]] = []

    async def publish(self, endpoints: tuple[Endpoint, ...], models: Sequence[ModelStatus]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.states.append(tuple(endpoint.id for endpoint in endpoints))


def plane(clock: FakeClock, fleet: MemoryDispatcher, *sinks: Any) -> ControlPlane:
    return ControlPlane(
        ControlSettings(),
        engines={values.ENGINE: FakeEngineAdapter()},
        policies={"pack": Pack()},
        dispatcher=fleet,
        clock=clock,
        sinks=sinks,
        jitter=lambda: 0.0,
    )


async def test_a_running_plane_places_publishes_and_ends_when_cancelled(clock: FakeClock) -> None:
    fleet, sink = MemoryDispatcher(), Flaky(ValueError("a bug"), TransientError("busy"))
    control = plane(clock, fleet, sink)
    control.set_catalog([values.model("m")])
    async with anyio.create_task_group() as group:
        assert await group.start(control.run) == "memory"
        fleet.join(values.inventory("n1"))
        for _ in range(20):
            await clock.advance(1.0)
            fleet.settle()
            fleet.beat()
        assert [record.replica.state for record in control.view.replicas()] == ["ready"]
        group.cancel_scope.cancel()
    # The bug cost the first state; the passing failure was retried without a change.
    assert sink.failures == []
    assert len(sink.states[-1]) == 1


async def test_a_nudge_is_answered_long_before_the_next_interval(clock: FakeClock) -> None:
    fleet = MemoryDispatcher()
    control = plane(clock, fleet)
    control.set_catalog([values.model("m", replicas={"min": 0}, idle_after=600)])
    async with anyio.create_task_group() as group:
        await group.start(control.run)
        fleet.join(values.inventory("n1"))
        for _ in range(40):
            await clock.advance(0.25)
        control.nudge("m")
        await clock.advance(0.1)
        assert len(fleet.sent) == 1
        group.cancel_scope.cancel()


class ForgetfulEvents:
    """A timeline that fails once, which it never may."""

    def __init__(self) -> None:
        self.fails = True

    def record(self, event: str, fields: Mapping[str, str]) -> None:
        if self.fails:
            self.fails = False
            raise KeyError(event)


class ForgetfulRouter:
    """Fails on the first endpoints that it is told of."""

    def __init__(self) -> None:
        self.fails = True
        self.told: list[tuple[Endpoint, ...]] = []

    def publish_endpoints(self, endpoints: tuple[Endpoint, ...], epoch: Epoch) -> None:
        if endpoints and self.fails:
            self.fails = False
            raise KeyError(epoch)
        self.told.append(endpoints)


async def test_a_mistake_in_a_pass_or_in_publishing_is_counted_and_the_next_one_goes_well(
    clock: FakeClock,
) -> None:
    fleet, router = MemoryDispatcher(), ForgetfulRouter()
    control = ControlPlane(
        ControlSettings(),
        engines={values.ENGINE: FakeEngineAdapter()},
        policies={"pack": Pack()},
        dispatcher=fleet,
        clock=clock,
        endpoint_sinks=[router],
        events=ForgetfulEvents(),
        jitter=lambda: 0.0,
    )
    control.set_catalog([values.model("m")])
    async with anyio.create_task_group() as group:
        await group.start(control.run)
        fleet.join(values.inventory("n1"))
        for _ in range(40):
            await clock.advance(1.0)
            fleet.settle()
            fleet.beat()
        group.cancel_scope.cancel()
    assert control.view.standing().failed == 1
    assert [record.replica.state for record in control.view.replicas()] == ["ready"]
    assert not router.fails
    assert len(router.told[-1]) == 1
