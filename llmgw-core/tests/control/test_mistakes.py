"""A plugin's mistake costs what it is about, and never the server that runs everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from llmgw.contracts.engine import Probe
from llmgw.contracts.leases import Lease
from llmgw.control.loops.leadership import LeadershipLoop
from llmgw.control.state.leases import MemoryLeases
from llmgw.domain.catalog import Profile
from llmgw.domain.commands import Command, ShardSpec
from llmgw.domain.ids import NodeId
from llmgw.errors import ConfigError, Problem
from llmgw.testing import values
from llmgw.testing.clock import FakeClock
from llmgw.testing.dispatch import MemoryDispatcher
from llmgw.testing.fake_adapter import FakeEngineAdapter

pytestmark = pytest.mark.anyio
MakeSite = Callable[..., Any]


class BrokenLeases(MemoryLeases):
    """Fails as long as it is told to."""

    fails = True

    def acquire(self, holder: str) -> Lease | None:
        if self.fails:
            raise KeyError("term")
        return super().acquire(holder)


async def test_a_lease_store_that_fails_costs_the_leadership_only(
    site: Any, clock: FakeClock
) -> None:
    leases = BrokenLeases()
    site.plane._leadership = LeadershipLoop(
        site.plane._stores, leases, holder="one", clock=clock, jitter=lambda: 0.0
    )
    await site.turn()
    assert not site.plane.view.standing().leading
    leases.fails = False
    await site.turn()
    assert site.plane.view.standing().leading


class BrokenDispatcher(MemoryDispatcher):
    """Fails on what is sent to one node."""

    fails = True

    async def dispatch(self, node: NodeId, commands: Sequence[Command]) -> None:
        if node == "a" and self.fails:
            raise KeyError("session")
        await super().dispatch(node, commands)


async def test_a_dispatcher_that_fails_on_one_node_is_asked_again_and_serves_the_others(
    make_site: MakeSite,
) -> None:
    fleet = BrokenDispatcher()
    site = make_site(fleet, placement_policy="spread")
    model = values.model("m", replicas={"min": 2, "max": 2})
    await site.serve([model], values.inventory("a"), values.inventory("b"))
    assert [node for node, _ in fleet.sent] == ["b"]
    fleet.fails = False
    await site.turn(12)
    await site.settle()
    assert site.replicas() == ["a:ready", "b:ready"]


class BrokenEngine(FakeEngineAdapter):
    """Cannot say what is wrong with a profile, nor how it sleeps."""

    def check(self, profile: Profile) -> tuple[Problem, ...]:
        if profile.options.get("tokens") == 7:
            raise KeyError("tokens")
        return super().check(profile)

    def sleep_requests(self, spec: ShardSpec, level: int) -> tuple[Probe, ...]:
        raise KeyError("level")


async def test_a_profile_that_its_adapter_fails_on_is_refused_with_the_mistake(
    make_site: MakeSite,
) -> None:
    site = make_site(adapter=BrokenEngine())
    with pytest.raises(ConfigError, match=r"adapter fake failed: KeyError: 'tokens'"):
        site.plane.set_catalog([values.model("m", values.profile(options={"tokens": 7}))])


async def test_an_engine_whose_adapter_fails_on_its_sleep_is_stopped_instead(
    make_site: MakeSite,
) -> None:
    site = make_site(adapter=BrokenEngine())
    profile = values.profile(devices=1, options={"can_sleep": True})
    model = values.model("m", profile, replicas={"min": 0}, idle_after=60.0)
    able = {"capabilities": frozenset({"sleep"}), "ram_available_mib": 400_000}
    await site.serve([model], values.inventory("n1", devices=1, **able))
    site.plane.nudge("m")
    await site.settle()
    (replica,) = site.plane.view.replicas()
    site.router.use(replica.id, idle_s=61.0)
    await site.turn(4, after_s=10.0)
    await site.settle()
    assert site.replicas() == []
