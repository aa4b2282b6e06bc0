"""Endpoints and models come and go for months: what is left of those that went is nothing."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import pytest

from llmgw.config.server import RouterSettings
from llmgw.contracts.balancing import RoutedRequest
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.domain.loads import EngineLoad
from llmgw.domain.shares import RouterShares
from llmgw.router.app import Router
from llmgw.router.balancers import llmgw_balancers
from llmgw.router.selection import Outcome, Reservation
from llmgw.router.table import ModelRoute
from llmgw.testing.clock import FakeClock
from llmgw.testing.engine_script import Close, Script, ScriptedEngine
from llmgw.testing.eventually import eventually
from llmgw.testing.raw_http import connect, post

pytestmark = pytest.mark.anyio

DEMO = ModelName("demo")
AT_A_TIME = 50
WAVES = 200
_SHARED = (
    *(type, ModuleType, FunctionType, BuiltinFunctionType),
    *(asyncio.Future, asyncio.AbstractEventLoop),
)
_NUMBERS = ("int", "float", "cell", "frame")


def held(root: object) -> Counter[str]:
    """Count all that can be reached from here, by type; numbers, which come as they like, aside."""
    found: Counter[str] = Counter()
    seen = {id(root)}
    ahead = [root]
    while ahead:
        item = ahead.pop()
        found[type(item).__qualname__] += 1
        for other in gc.get_referents(item):
            if id(other) not in seen and not isinstance(other, _SHARED):
                seen.add(id(other))
                ahead.append(other)
    return Counter({name: count for name, count in found.items() if name not in _NUMBERS})


class Fleet:
    """A router without sockets, whose endpoints are other ones each time."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        balancers = llmgw_balancers()
        self.profiles = [factory.name for factory in balancers]
        self.router = Router(
            RouterSettings(),
            balancers={factory.name: factory for factory in balancers},
            clock=self.clock,
        )

    def live(self, wave: int) -> None:
        """Be given endpoints that nobody has seen before, and use each in every way."""
        own = ModelName(f"model-{wave}")
        self._publish([_endpoint(f"{wave}-{at}", (DEMO, own)) for at in range(AT_A_TIME)])
        for profile in self.profiles:
            self._ask(DEMO, profile)
        self._ask(own, None)
        # They leave one of their models first, and the other one later.
        self._publish([_endpoint(f"{wave}-{at}", (own,)) for at in range(AT_A_TIME)])
        self._ask(own, None)

    def rest(self) -> Counter[str]:
        """Return what is held while the one endpoint is there that always is."""
        self._publish([])
        for profile in self.profiles:
            self._ask(DEMO, profile)
        self.router.take_shares(RouterShares())
        return held(self.router)

    def _publish(self, endpoints: list[Endpoint]) -> None:
        self.router.publish_endpoints((_endpoint("steady", (DEMO,)), *endpoints), Epoch(1))
        self.router.admission.tick()
        self.router.usage()

    def _ask(self, model: str, profile: str | None) -> None:
        router = self.router
        route = router.table.find(model)
        assert route is not None
        for state in router.selector.states():
            router.selector.set_load(state, EngineLoad(running=1, waiting=0))
        taken: list[Reservation] = []
        for seed in range(len(route.endpoints) + 1):
            router.admission.enter(
                route,
                _request(seed / (len(route.endpoints) + 1)),
                grant=None,
                priority=0,
                profile=profile,
                on_ready=taken.append,
                on_refused=lambda _: None,
            ).leave()
        assert taken
        for reservation, outcome in zip(taken, list(Outcome) * len(taken), strict=False):
            self._count(route, reservation)
            reservation.release(outcome)
        router.metrics.count_refused(model, 429)

    def _count(self, route: ModelRoute, reservation: Reservation) -> None:
        self.router.metrics.series(route.name, reservation.endpoint.id).retries += 1


def _endpoint(name: str, models: tuple[ModelName, ...]) -> Endpoint:
    return Endpoint(id=EndpointId(name), url=f"http://{name}", models=models, max_inflight=1)


def _request(seed: float) -> RoutedRequest:
    return RoutedRequest(
        model="demo", session_key=f"session {seed}", prompt=b"x" * 512, body_bytes=2048, seed=seed
    )


@pytest.mark.timeout(90)
async def test_nothing_is_left_of_ten_thousand_endpoints_and_two_hundred_models() -> None:
    fleet = Fleet()
    fleet.live(0)
    before = fleet.rest()
    for wave in range(1, WAVES + 1):
        fleet.live(wave)
    after = fleet.rest()
    assert after - before == Counter()


async def test_nothing_is_left_of_the_connections_to_endpoints_that_went(
    start_router: Any, make_endpoint: Any
) -> None:
    events = Script.events('{"choices":[]}')
    scripts = (events, Script.events('{"choices":[]}', end=[Close(reset=True)]))
    async with ScriptedEngine(events) as engine:
        running = await start_router(settings=RouterSettings(access_log=False))
        router: Router = running.router

        async def use(name: str) -> None:
            router.publish_endpoints((make_endpoint(engine.url, name=name),), Epoch(1))
            for script in scripts:
                engine.script = script
                async with connect(running.port) as client:
                    client.send(post("/v1/chat/completions", {"model": "demo", "stream": True}))
                    # It ends after its endpoint has left, as streams do.
                    answer = await client.answer(head_only=True)
                    router.publish_endpoints((), Epoch(1))
                    await client.read_body(answer)

        async def rest() -> None:
            await use("steady")
            await eventually(lambda: not router.front.count)
            router.ledger.settle(getattr(router.ledger.batch(), "id", ""))
            router.publish_endpoints((), Epoch(1))
            for endpoint in list(router.pool._idle):
                router.pool.forget(endpoint)
            await running.settled()

        await rest()
        before = held(router)
        for number in range(50):
            await use(f"e{number}")
        await rest()
        await eventually(lambda: not held(router) - before)
