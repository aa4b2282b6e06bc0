"""A control plane over nodes in memory, driven turn by turn, and snapshots to decide on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from llmgw.config.server import ControlSettings
from llmgw.contracts.engine import EngineAdapter, EngineTraits
from llmgw.control.decide.policies.fabric import Fabric
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.decide.policies.spread import Spread
from llmgw.control.decide.snapshot import ClusterSnapshot, Engine, NodeRecord
from llmgw.control.plane import ControlPlane
from llmgw.domain.catalog import Model, spec_hash
from llmgw.domain.endpoints import Endpoint, EndpointUsage, ModelStatus, RouterUsage
from llmgw.domain.ids import EndpointId, Epoch, ModelName, SessionId
from llmgw.domain.nodes import NodeInventory, NodeState
from llmgw.testing import values
from llmgw.testing.clock import FakeClock
from llmgw.testing.dispatch import MemoryDispatcher
from llmgw.testing.fake_adapter import FakeEngineAdapter


class RecordingRouter:
    """Both sinks and the usage source of one router, and what it says it has in force."""

    def __init__(self) -> None:
        self.serial = 0
        self.confirms = True  #: at once; False: not even what comes from now on
        self._in_force = 0
        self.endpoints: list[tuple[Endpoint, ...]] = []
        self.models: list[tuple[ModelStatus, ...]] = []
        self.epochs: list[Epoch] = []
        self.reported = RouterUsage()

    def publish_endpoints(self, endpoints: tuple[Endpoint, ...], epoch: Epoch) -> None:
        self.endpoints.append(endpoints)
        self.epochs.append(epoch)
        self.serial += 1
        self._in_force = self.serial if self.confirms else self._in_force

    def in_force(self) -> int:
        return self._in_force

    def confirm(self, serial: int) -> None:
        """Say that all up to this one is in force."""
        self._in_force = serial

    def publish_catalog(self, models: tuple[ModelStatus, ...], epoch: Epoch) -> None:
        self.models.append(models)

    def usage(self) -> RouterUsage:
        return self.reported

    @property
    def ids(self) -> list[str]:
        """Endpoints that take new requests."""
        return [item.id for item in self.endpoints[-1] if not item.draining]

    def status(self, name: str) -> ModelStatus:
        return next(item for item in self.models[-1] if item.names[0] == name)

    def use(
        self, endpoint: str, *, in_flight: int = 0, idle_s: float | None = 0.0, queued: int = 0
    ) -> None:
        """Say what was sent to an endpoint; the others keep what was said of them."""
        usage = EndpointUsage(idle_s=idle_s, in_flight=in_flight)
        self.reported = RouterUsage(
            endpoints={**self.reported.endpoints, EndpointId(endpoint): usage},
            queued=self.reported.queued,
        )

    def queue(self, model: str, count: int) -> None:
        self.reported = RouterUsage(
            endpoints=self.reported.endpoints, queued={ModelName(model): count}
        )


class Site:
    """One server's control plane and its fleet."""

    def __init__(
        self,
        clock: FakeClock,
        fleet: MemoryDispatcher,
        *,
        adapter: EngineAdapter | None = None,
        usage_is_known: bool = True,
        **settings: Any,
    ) -> None:
        self.clock = clock
        self.fleet = fleet
        self.router = RecordingRouter()
        self.plane = ControlPlane(
            ControlSettings(**settings),
            engines={values.ENGINE: adapter or FakeEngineAdapter()},
            policies={"pack": Pack(), "spread": Spread(), "fabric": Fabric()},
            dispatcher=fleet,
            clock=clock,
            endpoint_sinks=[self.router],
            catalog_sinks=[self.router],
            published=self.router,
            usage=self.router if usage_is_known else None,
            jitter=lambda: 0.0,
        )
        fleet.attach(self.plane.reports)

    async def turn(self, count: int = 1, *, after_s: float = 0.5) -> None:
        """Let time pass, every node send a heartbeat, and the control plane take a turn."""
        for _ in range(count):
            await self.clock.advance(after_s)
            self.fleet.beat()
            await self.plane.step()

    async def serve(self, models: Sequence[Model], *nodes: NodeInventory) -> None:
        """Bring nodes and models up until nothing changes any more."""
        self.plane.set_catalog(models)
        for node in nodes:
            self.fleet.join(node)
        await self.turn(8)  # the fleet settles three seconds after the first node
        await self.settle()

    async def settle(self, turns: int = 8) -> None:
        """Let engines and control plane work until both have had time to come to rest."""
        for _ in range(turns):
            self.fleet.settle()
            await self.turn()

    def replicas(self, model: str | None = None) -> list[str]:
        """Return `node:state` of each replica, of a model or all."""
        return sorted(
            f"{','.join(record.nodes)}:{record.replica.state}"
            for record in self.plane.view.replicas()
            if model in (None, record.replica.model)
        )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_site(clock: FakeClock) -> Callable[..., Site]:
    """Build a server; give `fleet` to build another one over the same nodes."""

    def make(fleet: MemoryDispatcher | None = None, **settings: Any) -> Site:
        return Site(clock, fleet or MemoryDispatcher(), **settings)

    return make


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


MakeSnapshot = Callable[..., ClusterSnapshot]


def _record(inventory: NodeInventory, **changes: Any) -> NodeRecord:
    fields: dict[str, Any] = {
        "id": inventory.node,
        "state": NodeState.READY,
        "since": 0.0,
        "session": SessionId("boot/1"),
        "inventory": inventory,
    }
    return NodeRecord(**(fields | changes))


def _snapshot(
    models: Sequence[Model] = (),
    nodes: Sequence[NodeInventory | NodeRecord] = (),
    **changes: Any,
) -> ClusterSnapshot:
    records = [item if isinstance(item, NodeRecord) else _record(item) for item in nodes]
    fields: dict[str, Any] = {
        "now": 1000.0,
        "models": tuple(models),
        "hashes": {
            model.name: {item.name: spec_hash(model, item) for item in model.profiles}
            for model in models
        },
        "nodes": {record.id: record for record in records},
        "engines": {values.ENGINE: Engine(traits=EngineTraits(runs_on_cpu=True))},
    }
    return ClusterSnapshot(**(fields | changes))


@pytest.fixture
def snapshot() -> MakeSnapshot:
    """Make a settled fleet of these nodes, led by us."""
    return _snapshot


@pytest.fixture
def record() -> Callable[..., NodeRecord]:
    """Make a ready node of this inventory."""
    return _record
