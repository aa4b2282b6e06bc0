"""What a server writes to its store: files' models, usage, and when nodes were seen."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import pytest

from llmgw.config.server import ControlSettings
from llmgw.control.plane import ControlPlane
from llmgw.domain.catalog import Model
from llmgw.domain.ids import EndpointId, ModelName
from llmgw.domain.usage import UsageRecord
from llmgw.errors import NotLeader
from llmgw.plugins import Registry
from llmgw.router.usage import UsageLedger
from llmgw.server.compose import put_in_force
from llmgw.server.deposits import Deposits, ModelsByFile
from llmgw.store import Store, open_store
from llmgw.store.catalog import CatalogEntry, CatalogRepository
from llmgw.testing.clock import FakeClock
from llmgw.testing.cluster import registry_of_fakes
from llmgw.testing.dispatch import MemoryDispatcher
from llmgw.testing.values import inventory

pytestmark = pytest.mark.anyio


class Room:
    """Deposits into a real store, with a fleet in memory."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.ledger = UsageLedger()
        self.nodes = MemoryDispatcher()
        self.imports = 0
        registry: Registry = registry_of_fakes()
        self.plane = ControlPlane(
            ControlSettings(),
            engines=registry.engines,
            policies=registry.policies,
            dispatcher=self.nodes,
            clock=clock,
        )
        self.nodes.attach(self.plane.reports)

    def deposits(self, files: ModelsByFile, *, may_empty: bool = False) -> Deposits:
        return Deposits(
            self.store,
            ledger=self.ledger,
            fleet=self.plane.view,
            files=files,
            imported=self._imported,
            clock=self.clock,
            may_empty=may_empty,
        )

    async def _imported(self) -> None:
        self.imports += 1

    async def catalog(self) -> dict[str, str]:
        """Owner by model."""
        entries = await self.store.run(self.store.catalog.entries)
        return {str(entry.model.name): entry.owner for entry in entries}


class CatalogOfAnother:
    """The catalog as a server sees it while another one leads."""

    def __init__(self, real: CatalogRepository) -> None:
        self._real = real

    def entries(self) -> tuple[CatalogEntry, ...]:
        return self._real.entries()

    def replace_owned(self, owner: str, told: Sequence[Model], *, who: str) -> None:
        raise NotLeader("other")


@pytest.fixture
async def room(tmp_path: Path, fake_clock: FakeClock) -> AsyncIterator[Room]:
    store = await anyio.to_thread.run_sync(
        lambda: open_store(None, state_dir=tmp_path, clock=fake_clock)
    )
    yield Room(store, fake_clock)
    store.close()


async def lead(store: Store) -> None:
    assert await anyio.to_thread.run_sync(store.leases.acquire, "this server")


def models(*names: str) -> Sequence[Model]:
    return [Model(name=ModelName(name)) for name in names]


async def test_models_of_files_go_in_once_this_server_leads(room: Room) -> None:
    await lead(room.store)
    real = room.store.catalog
    room.store.catalog = CatalogOfAnother(real)  # type: ignore[assignment] # all that is used here
    deposits = room.deposits({"a.yaml": models("one", "two")})
    await deposits.write()
    assert await room.catalog() == {}
    room.store.catalog = real
    await deposits.write()
    assert await room.catalog() == {"one": "file:a.yaml", "two": "file:a.yaml"}
    await deposits.write()
    assert room.imports == 1


async def test_a_model_moves_between_files_and_one_that_left_its_file_leaves(room: Room) -> None:
    await lead(room.store)
    deposits = room.deposits({"a.yaml": models("one", "two"), "b.yaml": models("three")})
    await deposits.write()
    deposits.set_files({"a.yaml": models("one"), "b.yaml": models("two")})
    await deposits.write()
    assert await room.catalog() == {"one": "file:a.yaml", "two": "file:b.yaml"}
    deposits.set_files({"renamed.yaml": models("one", "two")})
    await deposits.write()
    assert await room.catalog() == {"one": "file:renamed.yaml", "two": "file:renamed.yaml"}


async def test_a_file_that_vanished_takes_its_models_along_only_where_that_is_allowed(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    await lead(room.store)
    await room.deposits({"a.yaml": models("one"), "b.yaml": models("two")}).write()
    await room.deposits({"b.yaml": models("two")}).write()
    assert await room.catalog() == {"one": "file:a.yaml", "two": "file:b.yaml"}
    await room.deposits({}).write()
    assert len(await room.catalog()) == 2
    assert set(caplog.messages) == {"models kept though their file has vanished or is empty"}
    await room.deposits({"b.yaml": models("two")}, may_empty=True).write()
    assert await room.catalog() == {"two": "file:b.yaml"}


async def test_a_name_that_the_api_owns_is_refused_once_and_aloud(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    await lead(room.store)
    await room.store.run(lambda: room.store.catalog.apply(models("one"), who="op"))
    deposits = room.deposits({"a.yaml": models("one")})
    await deposits.write()
    await deposits.write()
    assert caplog.messages == ["catalog files not in force"]
    assert await room.catalog() == {"one": "api"}


async def test_a_follower_whose_files_differ_says_so_once(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    room.store.catalog = CatalogOfAnother(room.store.catalog)  # type: ignore[assignment] # likewise
    deposits = room.deposits({"a.yaml": models("one")})
    await deposits.write()
    await deposits.write()
    assert caplog.messages == ["catalog files differ from the leader's, which count"]
    assert caplog.records[0].levelno == logging.WARNING


async def test_usage_is_stored_and_settled(room: Room) -> None:
    record = UsageRecord(
        at=room.clock.wall(),
        key="",
        model=ModelName("one"),
        endpoint=EndpointId("e"),
        status=200,
        prompt_tokens=3,
        completion_tokens=4,
    )
    room.ledger.add(record)
    await room.deposits({}).write()
    assert len(room.ledger) == 0


async def test_a_new_node_is_noted_at_once_and_a_known_one_now_and_then(room: Room) -> None:
    await lead(room.store)
    deposits = room.deposits({})
    room.nodes.join(inventory("n1"))
    await deposits.write()
    (known,) = await room.store.run(room.store.nodes.list)
    assert (known.id, known.last_seen) == ("n1", room.clock.wall())
    first = room.clock.wall()
    await room.clock.advance(30.0)
    await deposits.write()
    (known,) = await room.store.run(room.store.nodes.list)
    assert known.last_seen == first
    room.nodes.beat()
    await room.clock.advance(40.0)
    await deposits.write()
    (known,) = await room.store.run(room.store.nodes.list)
    assert known.last_seen == pytest.approx(first + 30.0)


async def test_a_stored_model_whose_engine_is_gone_does_not_take_the_others_away(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    profile = {"engine": "fake", "weights": "path:/w"}
    good = Model.model_validate({"name": "good", "profiles": [profile]})
    gone = Model.model_validate({"name": "gone", "profiles": [{**profile, "engine": "removed"}]})
    put_in_force(room.plane, [gone, good])
    assert [view.model.name for view in room.plane.view.models()] == ["good"]
    assert caplog.messages == ["models left out of the catalog"]
    assert caplog.records[0].__dict__["fields"]["models"] == "gone"
