"""The rest of a server hears of changes: its own at once, another server's soon; each once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from llmgw.domain.catalog import Model
from llmgw.domain.ids import ModelName, NodeId
from llmgw.errors import ConfigError, Problem
from llmgw.store import Follower, Listeners, Store
from llmgw.store.nodes import SeenNode
from llmgw.testing.clock import FakeClock

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("store_url", ["sqlite"], indirect=True),
]

GPU = NodeId("gpu-01")


@dataclass
class Heard:
    """Everything that was passed on."""

    calls: list[tuple[str, object]] = field(default_factory=list)

    def listeners(self) -> Listeners:
        return Listeners(
            catalog=lambda models: self.calls.append(("catalog", [m.name for m in models])),
            nodes=lambda nodes: self.calls.append(("nodes", [n.id for n in nodes])),
            node_forgotten=lambda node: self.calls.append(("forgotten", node)),
            keys=lambda keys, _: self.calls.append(("keys", len(keys))),
        )

    def take(self) -> list[tuple[str, object]]:
        taken, self.calls = self.calls, []
        return taken


def seen(at: float) -> SeenNode:
    return SeenNode(id=GPU, agent_uid="u", machine_id="m", hostname="h", pool="p", at=at)


async def test_each_change_is_passed_on_once_and_whole(store: Store, clock: FakeClock) -> None:
    heard = Heard()
    follower = Follower(store, heard.listeners(), clock)
    await follower.refresh()
    assert heard.take() == [("catalog", []), ("keys", 0)]
    await follower.refresh()
    assert heard.take() == []

    store.catalog.apply([Model(name=ModelName("a"))], who="ada")
    store.keys.create("ci", who="ada")
    await follower.refresh()
    assert heard.take() == [("catalog", ["a"]), ("keys", 1)]


async def test_only_what_operators_decide_about_a_node_is_news(
    store: Store, clock: FakeClock
) -> None:
    heard = Heard()
    follower = Follower(store, heard.listeners(), clock)
    store.nodes.record_seen([seen(1.0)])
    await follower.refresh()
    assert ("nodes", [GPU]) in heard.take()
    store.nodes.record_seen([seen(2.0)])
    await follower.refresh()
    assert heard.take() == []
    store.nodes.cordon(GPU, "fan")
    await follower.refresh()
    assert heard.take() == [("nodes", [GPU])]
    store.nodes.forget(GPU)
    await follower.refresh()
    assert heard.take() == [("forgotten", GPU)]


async def test_a_listener_that_refuses_is_asked_again(store: Store, clock: FakeClock) -> None:
    """A catalog that could not be put in force must not count as passed on."""
    refusals = [ValueError("not now")]
    taken: list[int] = []

    def picky(models: tuple[Model, ...]) -> None:
        if refusals:
            raise refusals.pop()
        taken.append(len(models))

    follower = Follower(store, Listeners(catalog=picky), clock)
    store.catalog.apply([Model(name=ModelName("a"))], who="ada")
    with pytest.raises(ValueError, match="not now"):
        await follower.refresh()
    await follower.refresh()
    assert taken == [1]


async def test_a_key_is_revoked_though_the_catalog_cannot_be_put_in_force(
    store: Store, clock: FakeClock
) -> None:
    def refuse(models: tuple[Model, ...]) -> None:
        raise ConfigError("catalog", [Problem(path="models[0]", message="cannot be read")])

    heard: list[int] = []
    listeners = Listeners(catalog=refuse, keys=lambda keys, _: heard.append(len(keys)))
    follower = Follower(store, listeners, clock)
    record, _ = store.keys.create("ci", who="ada")
    with pytest.raises(ConfigError, match="cannot be read"):
        await follower.refresh()
    store.keys.revoke(record.key.id)
    with pytest.raises(ConfigError, match="cannot be read"):
        await follower.refresh()
    assert heard == [1, 0]


async def test_what_the_control_plane_did_is_in_the_timeline_within_a_second(
    store: Store, clock: FakeClock, tmp_path: Path
) -> None:
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            await tasks.start(lambda *, task_status: store.keep_fresh(task_status=task_status))
            assert (tmp_path / "state" / "join.token").exists()
            store.events.record("replica started", {"model": "m", "replica": "m-1-1"})
            while not store.events.list():
                await clock.advance(1.0)
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    (event,) = store.events.list()
    assert (event.kind, event.subject, event.who) == ("replica_started", "model m", "llmgw")


def test_events_wait_while_the_store_is_away_and_are_stored_once(store: Store) -> None:
    store.events.record("node lost", {"node": "gpu-01"})
    store.events.flush()
    store.events.flush()
    assert [event.kind for event in store.events.list()] == ["node_lost"]
