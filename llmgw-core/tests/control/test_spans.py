"""What the control plane does is told to who follows it, with its length."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from llmgw.config.server import ControlSettings
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.plane import ControlPlane
from llmgw.testing import values
from llmgw.testing.clock import FakeClock
from llmgw.testing.dispatch import MemoryDispatcher
from llmgw.testing.fake_adapter import FakeEngineAdapter

pytestmark = pytest.mark.anyio


class Notes:
    """Everything that was noted."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, float, Mapping[str, object]]] = []

    def note(self, name: str, *, took_s: float, attributes: Mapping[str, object]) -> None:
        self.spans.append((name, took_s, attributes))

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.spans]


async def turn(clock: FakeClock, fleet: MemoryDispatcher, control: ControlPlane) -> None:
    for _ in range(20):
        await clock.advance(0.5)
        fleet.beat()
        fleet.settle()
        await control.step()


async def test_plans_starts_and_ends_are_spans_and_a_pass_that_orders_nothing_is_none(
    clock: FakeClock,
) -> None:
    fleet, notes = MemoryDispatcher(), Notes()
    control = ControlPlane(
        ControlSettings(),
        engines={values.ENGINE: FakeEngineAdapter()},
        policies={"pack": Pack()},
        dispatcher=fleet,
        clock=clock,
        spans=notes,
        jitter=lambda: 0.0,
    )
    fleet.attach(control.reports)
    control.set_catalog([values.model("m")])
    fleet.join(values.inventory("n1"))
    await turn(clock, fleet, control)
    assert notes.names == ["plan", "start replica"]
    (_, _, plan), (_, took_s, start) = notes.spans
    assert (plan["llmgw.plan.actions"], plan["llmgw.plan.unplaced"]) == (1, 0)
    assert (start["llmgw.model"], start["llmgw.replica.nodes"]) == ("m", "n1")
    assert 0 < took_s < 10
    control.set_catalog([])
    await turn(clock, fleet, control)
    assert notes.names[-1] == "stop replica"
    _, _, end = notes.spans[-1]
    assert end["llmgw.replica"] == start["llmgw.replica"]
    assert end["llmgw.because"] == "the model left the catalog"
    assert set(notes.names[2:-1]) == {"plan"}
