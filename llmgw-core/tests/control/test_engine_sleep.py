"""The rung between serving and stopped: an engine's own sleep, which lends its devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmgw.contracts.engine import EngineTraits, Probe
from llmgw.domain.commands import ShardSpec, SleepShard, StartShard, StopShard, WakeShard
from llmgw.domain.endpoints import ModelState
from llmgw.domain.ids import NodeId
from llmgw.domain.replicas import Failure, FailureCause, ShardState
from llmgw.testing import values
from llmgw.testing.fake_adapter import FakeEngineAdapter

pytestmark = pytest.mark.anyio
N1 = NodeId("n1")
MakeSite = Callable[..., Any]


class ForgetfulEngine(FakeEngineAdapter):
    """It may keep its weights in main memory while it sleeps, or drop them."""

    def sleep_requests(self, spec: ShardSpec, level: int) -> tuple[Probe, ...]:
        return super().sleep_requests(spec, 1)


class OpenEngine(FakeEngineAdapter):
    """Whoever reaches it may put it to sleep."""

    traits = EngineTraits(runs_on_cpu=True, sleep_is_open=True)


def sleepy(name: str, **changes: Any) -> Any:
    profile = values.profile(devices=changes.pop("devices", 1), options={"can_sleep": True})
    return values.model(name, profile, **{"replicas": {"min": 0}, "idle_after": 60.0, **changes})


def node(devices: int = 1, **changes: Any) -> Any:
    able = {"capabilities": frozenset({"sleep"}), "ram_available_mib": 400_000}
    return values.inventory("n1", devices=devices, **{**able, **changes})


async def wake(site: Any, name: str) -> None:
    site.plane.nudge(name)
    await site.settle()


async def idle(site: Any, model: str) -> None:
    """Let nobody have used the model for a while."""
    for record in site.plane.view.replicas():
        if record.replica.model == model:
            site.router.use(record.id, idle_s=61.0)
    await site.turn(4, after_s=10.0)
    await site.settle()


def sent(site: Any, kind: type) -> list[Any]:
    return [command for _, command in site.fleet.sent if isinstance(command, kind)]


async def test_an_idle_replica_is_withdrawn_then_sleeps_and_is_woken_by_a_request(
    site: Any,
) -> None:
    await site.serve([sleepy("m")], node())
    await wake(site, "m")
    await idle(site, "m")
    assert site.replicas() == ["n1:sleeping"]
    assert site.router.endpoints[-1] == ()
    assert site.router.status("m").state is ModelState.ASLEEP
    assert [command.level for command in sent(site, SleepShard)] == [1]
    site.plane.nudge("m")
    await site.turn()
    assert site.router.status("m").state in (ModelState.WAKING, ModelState.SERVING)
    await site.settle()
    assert site.replicas() == ["n1:ready"]
    assert len(sent(site, StartShard)) == 1
    assert len(sent(site, WakeShard)) == 1
    assert sent(site, StopShard) == []


async def test_the_devices_of_a_sleeper_serve_another_model_and_two_take_turns(site: Any) -> None:
    await site.serve([sleepy("a"), sleepy("b")], node(1))
    await wake(site, "a")
    await idle(site, "a")
    await wake(site, "b")
    assert site.replicas("a") == ["n1:sleeping"]
    assert site.replicas("b") == ["n1:ready"]
    await site.turn(70)  # b has been resident for long enough
    await wake(site, "a")
    await site.settle()
    assert site.replicas("a") == ["n1:ready"]
    assert site.replicas("b") == ["n1:sleeping"]
    await site.turn(70)
    await wake(site, "b")
    await site.settle()
    assert site.replicas("b") == ["n1:ready"]
    assert len(sent(site, StartShard)) == 2  # one load each, however often they take turns


async def test_a_free_device_is_taken_before_that_of_a_sleeper(site: Any) -> None:
    await site.serve([sleepy("a"), sleepy("b")], node(2))
    await wake(site, "a")
    await idle(site, "a")
    await wake(site, "b")
    devices = {
        report.spec.model: report.spec.devices for report in site.fleet.nodes[N1].shards.values()
    }
    assert devices["a"] != devices["b"]


async def test_weights_are_dropped_where_main_memory_is_short(make_site: MakeSite) -> None:
    site = make_site(adapter=ForgetfulEngine())
    await site.serve([sleepy("m")], node(ram_available_mib=41_000))
    await wake(site, "m")
    await idle(site, "m")
    assert [command.level for command in sent(site, SleepShard)] == [2]


@pytest.mark.parametrize(
    "able", [frozenset(), frozenset({"sleep"})], ids=["an older agent", "an unguarded node"]
)
async def test_where_sleep_is_not_possible_or_not_safe_the_replica_is_stopped(
    make_site: MakeSite, able: frozenset[str]
) -> None:
    site = make_site(adapter=OpenEngine())
    await site.serve([sleepy("m")], node(capabilities=able))
    await wake(site, "m")
    await idle(site, "m")
    assert site.replicas() == []
    assert sent(site, SleepShard) == []


async def test_a_guarded_node_puts_open_engines_to_sleep(make_site: MakeSite) -> None:
    site = make_site(adapter=OpenEngine())
    await site.serve([sleepy("m")], node(capabilities=frozenset({"sleep", "guarded"})))
    await wake(site, "m")
    await idle(site, "m")
    assert site.replicas() == ["n1:sleeping"]


async def test_a_sleeper_of_an_old_version_or_of_no_entry_is_stopped(site: Any) -> None:
    await site.serve([sleepy("m"), sleepy("n")], node(2))
    for name in ("m", "n"):
        await wake(site, name)
        await idle(site, name)
    site.plane.set_catalog([sleepy("m", aliases=("other",))])
    await site.settle()
    assert site.replicas() == []


async def test_a_sleeper_is_stopped_in_the_end(site: Any) -> None:
    await site.serve([sleepy("m")], node())
    await wake(site, "m")
    await idle(site, "m")
    await site.clock.advance(86_400)
    site.fleet.reconnect(N1)
    await site.settle(16)
    assert site.replicas() == []


async def test_an_engine_that_does_not_fall_asleep_is_stopped(site: Any) -> None:
    await site.serve([sleepy("m")], node())
    await wake(site, "m")
    (shard,) = site.fleet.nodes[N1].shards
    failure = Failure(cause=FailureCause.SLEEP_FAILED, message="it still holds its memory")
    await idle(site, "m")
    site.fleet.enter(shard, ShardState.FAILED, failure=failure)
    await site.settle()
    assert site.replicas() == []
    await wake(site, "m")  # its node is not held against it
    assert site.replicas() == ["n1:ready"]


async def test_a_new_server_finds_the_sleeper_and_wakes_it(site: Any, make_site: MakeSite) -> None:
    await site.serve([sleepy("m")], node())
    await wake(site, "m")
    await idle(site, "m")
    again = make_site(site.fleet)
    again.plane.set_catalog([sleepy("m")])
    site.fleet.reconnect(N1)
    await again.turn(10)
    assert again.replicas() == ["n1:sleeping"]
    await wake(again, "m")
    assert again.replicas() == ["n1:ready"]
    assert len(sent(site, StartShard)) == 1
