"""Two servers, one leads: what is reported to the other reaches the leader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from llmgw.config.loading import load_server
from llmgw.domain.endpoints import Endpoint, EndpointUsage, ModelStatus, RouterUsage
from llmgw.domain.ids import EndpointId, Epoch, ModelName, ReplicaId
from llmgw.domain.keys import ApiKey, KeyLimits
from llmgw.domain.secret import Secret
from llmgw.domain.shares import KeyWant, RouterShares, RouterWants
from llmgw.errors import ConfigError
from llmgw.router.feed import FeedClient, FeedSource
from llmgw.router.keys import KeyTable
from llmgw.router.usage import UsageLedger
from llmgw.server.feeding import UsageOfAll
from llmgw.server.forwarding import Forwarding, NudgeAll
from llmgw.testing.clock import FakeClock
from llmgw.testing.cluster import running_server

pytestmark = pytest.mark.anyio

M = ModelName("m")
E = EndpointId("e")
LIMITS = KeyLimits(concurrent_requests=10)
BUSY = RouterWants(keys={"k": KeyWant(concurrent_requests=10)})


class Lines(httpx.AsyncByteStream):
    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self._lines = lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for line in self._lines:
            yield line


class Router:
    """A router: of a server's own process, or one that follows a feed."""

    def __init__(self, clock: FakeClock, *, in_flight: int = 0) -> None:
        self.keys = KeyTable(clock, is_open=False)
        self.ledger = UsageLedger()
        self.in_flight = in_flight
        self.shares = RouterShares()
        self.wanted = RouterWants()

    def publish_endpoints(self, endpoints: tuple[Endpoint, ...], epoch: Epoch) -> None:
        pass

    def publish_catalog(self, models: tuple[ModelStatus, ...], epoch: Epoch) -> None:
        pass

    def usage(self) -> RouterUsage:
        idle_s = 0.0 if self.in_flight else 60.0
        return RouterUsage(
            endpoints={E: EndpointUsage(idle_s=idle_s, in_flight=self.in_flight)}, queued={M: 1}
        )

    def wants(self) -> RouterWants:
        return self.wanted

    def take_shares(self, shares: RouterShares) -> None:
        self.shares = shares


class Server(httpx.AsyncBaseTransport):
    """A server with a router of its own, and its admin listener."""

    def __init__(self, name: str, clock: FakeClock) -> None:
        self.own = Router(clock)
        self.source = FeedSource(cluster="c", server=name, clock=clock)
        self.source.publish_keys([ApiKey(id="k", secret_hash="0" * 64, limits=LIMITS)])
        self.usage = UsageOfAll([self.own, self.source])
        self.nudged: list[ModelName] = []

    def nudge(self, model: ModelName) -> None:
        self.nudged.append(model)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, stream=Lines(self.source.lines()))
        return httpx.Response(200, content=await self.source.receive(await request.aread()))


def fleet(*ids: str) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(id=EndpointId(id_), url="http://x", models=(M,), replica=ReplicaId(id_))
        for id_ in ids
    )


class Site:
    """A leader, a follower, and a router that knows the follower only."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.leader, self.follower = Server("a", self.clock), Server("b", self.clock)
        self.leader.source.publish_leading(True)
        self.router = Router(self.clock, in_flight=3)
        forwarding = Forwarding(self.follower.source, self.follower.usage, self.clock)
        self.upward = FeedClient(
            ["a"],
            Secret("t"),
            forwarding,
            self.clock,
            connect=lambda _: self._client(self.leader),
            has_in_force=forwarding.has_in_force,
            only_leader=True,
        )
        self.follower.source.nudges = NudgeAll(self.follower.source, self.follower, self.upward)
        self.leader.source.nudges = self.leader
        self.feed = FeedClient(
            ["b"],
            Secret("t"),
            self.router,
            self.clock,
            connect=lambda _: self._client(self.follower),
        )

    @staticmethod
    def _client(server: Server) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=server, base_url="http://server")

    def publish(self, server: Server, *ids: str) -> None:
        server.source.publish_endpoints(fleet(*ids), Epoch(1))

    async def wait(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.5)):
            await self.clock.advance(0.5)
            await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def running() -> AsyncIterator[Site]:
    site = Site()
    site.publish(site.leader, "e")
    site.publish(site.follower, "e")
    async with anyio.create_task_group() as tasks:
        for service in (site.leader.source, site.follower.source, site.upward, site.feed):
            await tasks.start(service.run)
        await site.wait(3)
        yield site
        tasks.cancel_scope.cancel()


async def test_what_a_followers_routers_use_keeps_the_leader_from_believing_it_idle() -> None:
    async with running() as site:
        used = site.leader.usage.usage()
        assert used.endpoints[E] == EndpointUsage(idle_s=0.0, in_flight=3)
        assert used.queued == {M: 3}, "who waits at the leader, the follower and the router"
        site.router.in_flight = 0
        site.follower.own.in_flight = 1
        await site.wait(3)
        assert site.leader.usage.usage().endpoints[E].in_flight == 1


async def test_a_nudge_to_a_follower_wakes_the_leader_too() -> None:
    async with running() as site:
        site.feed.nudge(M)
        await site.wait(1)
        assert site.leader.nudged == [M]
        assert site.follower.nudged == [M], "it may lead in a moment"


async def test_a_withdrawal_is_acknowledged_when_the_followers_routers_have_it() -> None:
    async with running() as site:
        assert site.leader.source.all_applied()
        site.publish(site.leader)
        await site.wait(2)
        assert not site.leader.source.all_applied(), "the follower has not published it"
        site.publish(site.follower)
        await site.wait(3)
        assert site.leader.source.all_applied()


async def test_a_follower_passes_on_the_share_that_the_leader_gives_it() -> None:
    async with running() as site:
        told = told_below = None
        site.router.wanted = BUSY
        for _ in range(6):
            told = site.leader.source.share("own", RouterWants(), told)
            told_below = site.follower.source.share("own", RouterWants(), told_below)
            await site.wait(1)
        of_follower = site.follower.source.desk.bound.of_key("k", LIMITS).concurrent_requests
        assert of_follower == 9, "all but the one that the leader's own router keeps"
        of_router = site.router.shares.of_key("k", LIMITS).concurrent_requests
        assert of_router is not None
        assert of_router == 8


async def test_a_server_that_leads_reports_to_nobody_and_takes_no_share() -> None:
    async with running() as site:
        site.leader.source.publish_leading(False)
        site.follower.source.publish_leading(True)
        await site.wait(1)
        bound = site.follower.source.desk.bound
        site.feed.nudge(M)
        await site.wait(20)
        assert site.leader.nudged == []
        assert site.follower.source.desk.bound is bound
        assert site.leader.source.usage() == RouterUsage()


async def test_a_server_whose_peers_are_away_serves_all_the_same(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"control.enabled": "on", "control.peers": ["http://127.0.0.1:9"]}
    async with running_server(tmp_path, **settings) as server:
        assert (await server.api.get("/healthz")).status_code == 200
        assert (await server.admin.get("/admin/v1/status")).status_code == 200


@pytest.mark.parametrize("peer", ["10.0.0.2:8081", "http://10.0.0.2:8081/admin", "unix:/x"])
def test_a_peer_that_is_no_address_of_an_admin_listener_is_refused(peer: str) -> None:
    with pytest.raises(ConfigError, match=r"https://10\.0\.0\.2:8081"):
        load_server(None, {}, {"control.peers": [peer]}, needs_work=False)
