"""Both ends of the feed, joined in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from llmgw.adminapi.feed_messages import NOT_YET, RouterReport, encode_report
from llmgw.domain.endpoints import (
    Endpoint,
    EndpointUsage,
    ModelState,
    ModelStatus,
    RouterUsage,
)
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.domain.keys import ApiKey, KeyLimits, KeySpend
from llmgw.domain.secret import Secret
from llmgw.domain.shares import KeyWant, RouterShares, RouterWants
from llmgw.domain.usage import UsageBatch, UsageRecord
from llmgw.errors import RequestError
from llmgw.router.feed import FeedClient, FeedSource, LastTable
from llmgw.router.feed.source import summed
from llmgw.router.keys import KeyTable
from llmgw.router.usage import UsageLedger
from llmgw.testing.clock import FakeClock

pytestmark = pytest.mark.anyio

M = ModelName("m")


class Server(httpx.AsyncBaseTransport):
    """A server's admin listener: answers the feed's two paths, until it is taken down."""

    def __init__(self, name: str, clock: FakeClock) -> None:
        self.stored: list[UsageBatch] = []
        self.nudged: list[ModelName] = []
        self.source = FeedSource(
            cluster="c", server=name, clock=clock, store=self._store, nudges=self
        )
        self.is_up = True
        self.loses_replies = False
        self.says: bytes | None = None  #: in answer to a report, instead of what it should
        self.token = "t0ken"
        self._down = anyio.Event()

    async def _store(self, batch: UsageBatch) -> None:
        if batch.id not in {known.id for known in self.stored}:
            self.stored.append(batch)

    def nudge(self, model: ModelName) -> None:
        self.nudged.append(model)

    def lead(self, epoch: int, *ids: str) -> None:
        self.source.publish_leading(True)
        self.source.publish_endpoints(endpoints(*ids), Epoch(epoch))

    def down(self) -> None:
        self.is_up = False
        self._down.set()

    def up(self) -> None:
        self.is_up = True
        self._down = anyio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not self.is_up:
            raise httpx.ConnectError("refused")
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return httpx.Response(401)
        if request.method == "GET":
            return httpx.Response(200, stream=Lines(self.source.lines(), self._down))
        answer = await self.source.receive(await request.aread())
        if self.loses_replies:
            raise httpx.ReadTimeout("timed out")
        return httpx.Response(200, content=answer if self.says is None else self.says)


class Lines(httpx.AsyncByteStream):
    """The lines in odd pieces, cut off when the server goes down."""

    def __init__(self, lines: AsyncIterator[bytes], down: anyio.Event) -> None:
        self._lines = lines
        self._down = down

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for line in self._lines:
            if self._down.is_set():
                raise httpx.ReadError("reset")
            yield line[:7]
            yield line[7:]


class Router:
    """What a feed feeds."""

    def __init__(self, clock: FakeClock) -> None:
        self.keys = KeyTable(clock, is_open=False)
        self.ledger = UsageLedger()
        self.endpoints: tuple[Endpoint, ...] = ()
        self.models: tuple[ModelStatus, ...] = ()
        self.swaps = 0
        self.wanted = RouterWants()
        self.shares: RouterShares | None = None

    def publish_endpoints(self, endpoints: tuple[Endpoint, ...], epoch: Epoch) -> None:
        self.endpoints = endpoints
        self.swaps += 1

    def publish_catalog(self, models: tuple[ModelStatus, ...], epoch: Epoch) -> None:
        self.models = models

    def usage(self) -> RouterUsage:
        return RouterUsage(
            endpoints={
                endpoint.id: EndpointUsage(idle_s=3.0, in_flight=0) for endpoint in self.endpoints
            },
            queued={M: 2},
        )

    def wants(self) -> RouterWants:
        return self.wanted

    def take_shares(self, shares: RouterShares) -> None:
        self.shares = shares

    @property
    def ids(self) -> list[str]:
        return [endpoint.id for endpoint in self.endpoints]


def endpoints(*ids: str) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(id=EndpointId(id_), url="http://x", models=(M,)) for id_ in ids)


def record() -> UsageRecord:
    return UsageRecord(at=0.0, key="k", model=M, endpoint=None, status=200, prompt_tokens=5)


class Cluster:
    """Servers `a` and `b`, and one router."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.servers = {name: Server(name, self.clock) for name in "ab"}
        self.router = Router(self.clock)
        self.client = FeedClient(
            ["a", "b"],
            Secret("t0ken"),
            self.router,
            self.clock,
            last_table=LastTable(folder / "table.json"),
            connect=lambda name: httpx.AsyncClient(
                transport=self.servers[name], base_url=f"http://{name}"
            ),
        )

    async def wait(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.5)):
            await self.clock.advance(0.5)
            await anyio.wait_all_tasks_blocked()

    async def saved(self) -> None:
        """Wait for the table to be on disk: that is written by a thread, in real time."""
        await self.wait(2)
        with anyio.fail_after(5):
            while self.client._saved is not self.client._applied:  # noqa: ASYNC110 - a thread's end
                await anyio.sleep(0.01)


@asynccontextmanager
async def joined(cluster: Cluster) -> AsyncIterator[Cluster]:
    async with anyio.create_task_group() as tasks:
        for server in cluster.servers.values():
            await tasks.start(server.source.run)
        await tasks.start(cluster.client.run)
        await anyio.wait_all_tasks_blocked()
        yield cluster
        tasks.cancel_scope.cancel()


async def test_a_router_gets_the_leaders_snapshot_and_each_change(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.servers["a"].lead(5, "one")
    async with joined(cluster):
        assert cluster.router.ids == ["one"]
        cluster.servers["a"].lead(5, "one", "two")
        await anyio.wait_all_tasks_blocked()
        assert cluster.router.ids == ["one", "two"]
        assert not cluster.client.is_stale


async def test_nothing_is_swapped_when_nothing_has_changed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.servers["a"].lead(5, "one")
    async with joined(cluster):
        before = cluster.router.swaps
        cluster.servers["a"].lead(5, "one")
        cluster.servers["a"].source.publish_keys([ApiKey(id="k", secret_hash="0" * 64)])
        await cluster.wait(60)
        assert cluster.router.swaps == before
        assert [grant.key_id for grant in cluster.router.keys.grants()] == ["k"]


async def test_a_deposed_leader_is_not_obeyed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.servers["a"].lead(5, "old")
    async with joined(cluster):
        cluster.servers["b"].lead(6, "new")
        await anyio.wait_all_tasks_blocked()
        assert cluster.router.ids == ["new"]
        cluster.servers["a"].lead(5, "old", "older")
        await anyio.wait_all_tasks_blocked()
        assert cluster.router.ids == ["new"]


async def test_a_new_leader_that_has_not_heard_from_its_nodes_takes_nothing_away(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    cluster.servers["a"].lead(5, "one")
    async with joined(cluster):
        cluster.servers["a"].down()
        fresh = cluster.servers["b"].source
        fresh.publish_leading(True)
        fresh.publish_catalog((ModelStatus(names=(M,), state=ModelState.SERVING),), Epoch(6))
        await cluster.wait(30)
        assert cluster.router.ids == ["one"]
        fresh.publish_endpoints(endpoints("one", "two"), Epoch(6))
        await anyio.wait_all_tasks_blocked()
        assert cluster.router.ids == ["one", "two"]


async def test_a_follower_is_used_only_while_no_leader_is_heard(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.servers["a"].lead(5, "leader's")
    cluster.servers["b"].source.publish_endpoints(endpoints("follower's"), Epoch(5))
    async with joined(cluster):
        assert cluster.router.ids == ["leader's"]
        cluster.servers["a"].down()
        await cluster.wait(6)
        assert cluster.router.ids == ["follower's"]
        cluster.servers["a"].up()
        await cluster.wait(40)
        assert cluster.router.ids == ["leader's"]


async def test_with_no_server_the_last_table_stays_and_reconnecting_needs_no_help(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    cluster.servers["a"].lead(5, "one")
    async with joined(cluster):
        for server in cluster.servers.values():
            server.down()
        await cluster.wait(600)
        assert cluster.router.ids == ["one"]
        assert cluster.client.is_stale
        for server in cluster.servers.values():
            server.up()
        cluster.servers["a"].lead(6, "two")
        await cluster.wait(31)
        assert cluster.router.ids == ["two"]
        assert not cluster.client.is_stale


async def test_a_router_that_starts_alone_serves_the_table_on_disk(tmp_path: Path) -> None:
    first = Cluster(tmp_path)
    first.servers["a"].lead(5, "one")
    first.servers["a"].source.publish_catalog(
        (ModelStatus(names=(M,), state=ModelState.SERVING),), Epoch(5)
    )
    first.servers["a"].source.publish_keys([ApiKey(id="k", secret_hash="0" * 64)])
    async with joined(first):
        await first.saved()
    second = Cluster(tmp_path)
    for server in second.servers.values():
        server.down()
    async with joined(second):
        assert second.router.ids == ["one"]
        assert [model.names for model in second.router.models] == [(M,)]
        assert [grant.key_id for grant in second.router.keys.grants()] == ["k"]
        assert second.client.is_stale


async def test_a_table_on_disk_does_not_stand_against_a_newer_epoch(tmp_path: Path) -> None:
    first = Cluster(tmp_path)
    first.servers["a"].lead(5, "one")
    async with joined(first):
        await first.saved()
    second = Cluster(tmp_path)
    second.servers["a"].lead(6, "two")
    async with joined(second):
        assert second.router.ids == ["two"]


async def test_usage_reaches_the_leader_once_though_replies_are_lost(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    leader = cluster.servers["b"]
    leader.lead(5, "one")
    async with joined(cluster):
        leader.loses_replies = True
        cluster.router.ledger.add(record())
        await cluster.wait(5)
        cluster.router.ledger.add(record())
        leader.loses_replies = False
        await cluster.wait(3)
        assert [len(batch.records) for batch in leader.stored] == [1, 1]
        assert cluster.servers["a"].stored == []
        assert len(cluster.router.ledger) == 0
        assert leader.source.usage() == cluster.router.usage()
        assert leader.source.all_applied()


async def test_a_nudge_goes_up_at_once_and_is_repeated_until_it_is_heard(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    leader = cluster.servers["a"]
    leader.lead(5)
    async with joined(cluster):
        cluster.client.nudge(M)
        await anyio.wait_all_tasks_blocked()
        assert leader.nudged == [M]
        leader.loses_replies = True
        cluster.client.nudge(M)
        await cluster.wait(2)
        assert len(leader.nudged) >= 3
        leader.loses_replies = False
        await cluster.wait(2)
        heard = len(leader.nudged)
        await cluster.wait(5)
        assert len(leader.nudged) == heard


async def test_spend_reaches_the_keys_without_a_new_table(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    source = cluster.servers["a"].source
    cluster.servers["a"].lead(5, "one")
    limits = KeyLimits(tokens_per_day=10)
    source.publish_keys([ApiKey(id="k", secret_hash="0" * 64, limits=limits)])
    async with joined(cluster):
        before = cluster.router.swaps
        day = int(cluster.clock.wall() // 86400)
        source.publish_spend(
            [KeySpend(key="k", day=day, day_tokens=10, month=24_000, month_tokens=10)]
        )
        await anyio.wait_all_tasks_blocked()
        (grant,) = cluster.router.keys.grants()
        assert isinstance(grant.begin(1), RequestError)
        assert cluster.router.swaps == before


async def test_shares_of_limits_come_with_the_first_answer_and_follow_what_is_wanted(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    leader = cluster.servers["a"]
    leader.lead(5, "one")
    limits = KeyLimits(concurrent_requests=8)
    leader.source.publish_keys([ApiKey(id="k", secret_hash="0" * 64, limits=limits)])
    cluster.router.wanted = RouterWants(keys={"k": KeyWant(concurrent_requests=8)})
    async with joined(cluster):
        assert cluster.client.has_shares
        assert cluster.router.shares is not None
        assert cluster.router.shares.of_key("k", limits) == limits, "it is alone"
        told = leader.source.share("another", cluster.router.wanted, None)
        await cluster.wait(1)
        assert cluster.router.shares.of_key("k", limits).concurrent_requests == 4
        told = leader.source.share("another", RouterWants(), told)
        leader.source.share("another", RouterWants(), told)
        await cluster.wait(2)
        assert (cluster.router.shares.of_key("k", limits).concurrent_requests or 0) > 4


async def test_an_answer_that_is_no_share_changes_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.servers["a"].lead(5, "one")

    cluster.servers["a"].says = b'{"serial": "x"}'
    async with joined(cluster):
        cluster.router.ledger.add(record())
        await cluster.wait(2)
        assert not cluster.client.has_shares
        assert len(cluster.router.ledger) == 0, "the report was taken all the same"


async def test_a_silent_router_no_longer_counts(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    leader = cluster.servers["a"]
    leader.lead(5, "one")
    async with joined(cluster):
        await cluster.wait(2)
        assert leader.source.usage().queued == {M: 2}
    await cluster.clock.advance(20)
    assert leader.source.usage() == RouterUsage()


async def test_a_refused_token_says_so_and_the_other_server_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(tmp_path)
    cluster.servers["a"].token = "another"
    cluster.servers["b"].lead(5, "one")
    async with joined(cluster):
        assert cluster.router.ids == ["one"]
    problems = [getattr(record, "fields", {}).get("problem", "") for record in caplog.records]
    assert any("refuses the token (status 401)" in problem for problem in problems)
    assert "t0ken" not in caplog.text + repr(problems)


async def test_an_unreadable_report_is_the_senders_mistake() -> None:
    source = FeedSource(cluster="c", server="a", clock=FakeClock())
    with pytest.raises(RequestError, match="not a router's report"):
        await source.receive(b"{}")


def test_what_routers_know_is_summed() -> None:
    one = RouterUsage(
        endpoints={EndpointId("e"): EndpointUsage(idle_s=None, in_flight=0)}, queued={M: 1}
    )
    two = RouterUsage(
        endpoints={
            EndpointId("e"): EndpointUsage(idle_s=4.0, in_flight=0),
            EndpointId("f"): EndpointUsage(idle_s=0.0, in_flight=2),
        },
        queued={M: 2},
    )
    three = RouterUsage(endpoints={EndpointId("e"): EndpointUsage(idle_s=2.0, in_flight=0)})
    assert summed([one, two, three]) == RouterUsage(
        endpoints={
            EndpointId("e"): EndpointUsage(idle_s=2.0, in_flight=0),
            EndpointId("f"): EndpointUsage(idle_s=0.0, in_flight=2),
        },
        queued={M: 3},
    )


async def test_what_is_in_force_is_what_the_slowest_router_that_still_reports_has() -> None:
    clock = FakeClock()
    source = FeedSource(cluster="c", server="s", clock=clock)
    assert source.in_force() == source.serial
    for name in ("one", "two"):
        source.publish_endpoints(endpoints(name), Epoch(1))

    async def report(router: str, applied: int | None) -> None:
        said = RouterReport(router=router, applied=applied, usage=RouterUsage())
        await source.receive(encode_report(said))

    newest = source.serial
    await report("quick", newest)
    await report("slow", newest - 1)
    await report("fed by another server", None)
    assert source.in_force() == newest - 1
    assert not source.all_applied()
    await report("new", NOT_YET)
    assert source.in_force() == NOT_YET
    await clock.advance(16)
    await report("quick", newest)
    assert source.all_applied(), "those that are silent are not waited for"
