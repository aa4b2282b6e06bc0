"""LoRA adapters of a profile: loaded and dropped while the engine serves, and models by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmgw.control.decide.checks import catalog_problems
from llmgw.domain.commands import AdaptShard, StartShard
from llmgw.domain.endpoints import ModelState
from llmgw.domain.ids import ModelName, NodeId
from llmgw.domain.reports import AdapterReport
from llmgw.testing import values
from llmgw.testing.fake_adapter import FakeEngineAdapter

pytestmark = pytest.mark.anyio
N1 = NodeId("n1")


def adapted(*names: str, **changes: Any) -> Any:
    given = [{"name": name, "weights": f"path:/models/{name}"} for name in names]
    return values.model("m", values.profile(devices=1, adapters=given), **changes)


def node(**changes: Any) -> Any:
    able = {"capabilities": frozenset({"adapters"})}
    return values.inventory("n1", devices=1, **{**able, **changes})


def sent(site: Any, kind: type) -> list[Any]:
    return [command for _, command in site.fleet.sent if isinstance(command, kind)]


def served(site: Any) -> list[str]:
    return sorted(name for item in site.router.endpoints[-1] for name in item.adapters)


async def change(site: Any, *names: str) -> None:
    site.plane.set_catalog([adapted(*names)])
    await site.settle()


async def test_a_change_of_adapters_restarts_nothing(site: Any) -> None:
    await site.serve([adapted("sql")], node())
    assert served(site) == ["sql"]
    assert site.router.status("sql").state is ModelState.SERVING
    assert [view.model.name for view in site.plane.view.models()] == ["m"]
    await change(site, "sql", "poems")
    assert served(site) == ["poems", "sql"]
    await change(site, "poems")
    assert served(site) == ["poems"]
    assert site.replicas() == ["n1:ready"]
    assert len(sent(site, StartShard)) == 1
    told = [[item.name for item in command.adapters] for command in sent(site, AdaptShard)]
    assert told == [["sql", "poems"], ["poems"]]


async def test_routers_forget_an_adapter_before_its_engine_does(site: Any) -> None:
    await site.serve([adapted("sql")], node())
    site.plane.set_catalog([adapted()])
    site.plane.publish_now()
    assert served(site) == []
    assert "sql" not in {status.names[0] for status in site.router.models[-1]}


async def test_an_adapter_that_cannot_be_loaded_is_refused_with_the_engines_words(
    site: Any,
) -> None:
    await site.serve([adapted("sql")], node())
    own = site.fleet.nodes[N1]
    (shard,) = own.shards
    bad = (AdapterReport(name=ModelName("sql"), problem="No adapter found"),)
    session = site.plane.view.nodes()[0].record.session
    report = replace(own.shards[shard], adapters=bad)
    site.plane.reports.shard_reported(N1, session, report)
    await site.turn(2)
    assert served(site) == []
    status = site.router.status("sql")
    assert status.state is ModelState.UNPLACEABLE
    assert status.refusal is not None
    assert status.refusal.code == "adapter_failed"
    assert "No adapter found" in status.refusal.sentence
    assert site.router.status("m").state is ModelState.SERVING


async def test_a_request_for_an_adapter_wakes_its_model(site: Any) -> None:
    await site.serve([adapted("sql", replicas={"min": 0}, idle_after=60.0)], node())
    assert site.router.status("sql").state is ModelState.ASLEEP
    site.plane.nudge("sql")
    await site.settle()
    assert site.replicas() == ["n1:ready"]


async def test_an_agent_that_knows_no_adapters_is_told_nothing_and_clients_are_told(
    site: Any,
) -> None:
    await site.serve([adapted()], node(capabilities=frozenset()))
    await change(site, "sql")
    assert sent(site, AdaptShard) == []
    refusal = site.router.status("sql").refusal
    assert refusal is not None, "and nobody waits for what cannot come"
    assert (refusal.code, refusal.node) == ("agent_too_old", "n1")


def test_what_an_entry_cannot_have_is_named() -> None:
    engines = {values.ENGINE: FakeEngineAdapter()}

    def problems(*models: Any) -> list[str]:
        return [str(item) for item in catalog_problems(models, engines=engines, sources={})]

    assert problems(adapted("sql")) == []
    taken = problems(adapted("sql"), values.model("sql"))
    assert "the name 'sql' is taken by 'm'" in taken[0]
    given = [{"name": "sql", "weights": "path:/models/sql"}]
    wide = values.model("w", values.profile(devices=2, nodes=2, adapters=given))
    assert "profiles[0].adapters" in problems(wide)[0]
