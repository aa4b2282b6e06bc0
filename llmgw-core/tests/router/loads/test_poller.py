"""What the poller makes of engines that answer, fall silent, lie or hang."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from llmgw.config.server import HealthChecks, RouterSettings
from llmgw.contracts.balancing import RoutedRequest
from llmgw.contracts.engine import MetricsUnreadable
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.domain.loads import EngineLoad
from llmgw.router.balancers import llmgw_balancers
from llmgw.router.loads import LoadPoller
from llmgw.router.pool import LookFailed, Page
from llmgw.router.selection import EndpointState, Outcome, Reservation, Selector, compile_profiles
from llmgw.router.selection.state import Condition
from llmgw.router.table import Table
from llmgw.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


class Adapter:
    """Reads `running waiting tokens`."""

    name = "fake"

    def read_load(self, page: str) -> EngineLoad:
        if page.startswith("<html"):
            raise MetricsUnreadable("no gauge of a fake engine")
        if page == "crash":
            raise ZeroDivisionError
        running, waiting, tokens = page.split()
        return EngineLoad(
            running=int(running), waiting=int(waiting), generated_tokens=float(tokens)
        )


class Engines:
    """Every engine at once, by host: its page and its health, which is a status, None for
    nobody listens, 0 for silence, -1 for no way there."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.health: dict[str, int | None] = {}
        self.pages: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []  #: host and path

    async def get(
        self, endpoint: Endpoint, path: str, *, limit_s: float, most: int, fresh: bool
    ) -> Page:
        host = endpoint.url.removeprefix("http://")
        self.asked.append((host, path))
        assert fresh is (path == "/health"), "a kept connection hides that no new one is to be had"
        if path == "/health":
            status = self.health.get(host, 200)
            if status is None:
                raise LookFailed("refused", is_away=True, is_refused=True)
            if status == -1:
                await self.clock.sleep(2.0)
                raise LookFailed("no way there", is_away=True)
            if status == 0:
                raise LookFailed(f"no answer within {limit_s:g} s")
            return Page(status, b"")
        page = self.pages.get(host)
        if page is None:
            return Page(404, b"")
        if len(page) > most:
            raise LookFailed("the page is too large")
        return Page(200, page.encode())


class Fleet:
    """Endpoints `a` and `b`, watched."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.engines = Engines(self.clock)
        settings = RouterSettings(default_profile="load")
        balancers = {factory.name: factory for factory in llmgw_balancers()}
        self.selector = Selector(settings, compile_profiles(settings, balancers), self.clock)
        self.poller = LoadPoller(
            self.selector,
            {"fake": Adapter()},  # type: ignore[dict-item]  # the poller calls read_load only
            HealthChecks(),
            self.clock,
            get=self.engines.get,
        )

    def publish(self, *ids: str, **given: Any) -> None:
        endpoints = [
            Endpoint(
                id=EndpointId(id_),
                url=f"http://{id_}",
                models=(ModelName("m"),),
                engine="fake",
                metrics_path="/metrics",
                **given,
            )
            for id_ in ids
        ]
        self.table = Table.build(endpoints, (), Epoch(0))
        self.selector.update(self.table)

    def state(self, id_: str) -> EndpointState:
        state = self.selector.state(EndpointId(id_))
        assert state is not None
        return state

    def take(self, body_bytes: int = 0, *, profile: str | None = None) -> Reservation:
        route = self.table.find("m")
        assert route is not None
        got = self.selector.reserve(
            route,
            RoutedRequest(model="m", session_key=None, prompt=b"", body_bytes=body_bytes, seed=0.0),
            profile=profile,
        )
        assert isinstance(got, Reservation)
        return got

    async def wait(self, seconds: float) -> None:
        """Let time pass in steps, so that each look ends before the next begins."""
        while seconds > 0:
            await self.clock.advance(min(0.5, seconds))
            await anyio.wait_all_tasks_blocked()
            seconds -= 0.5


@asynccontextmanager
async def watched(*ids: str, **given: Any) -> AsyncIterator[Fleet]:
    fleet = Fleet()
    fleet.publish(*ids, **given)
    async with anyio.create_task_group() as tasks:
        await tasks.start(fleet.poller.run)
        yield fleet
        tasks.cancel_scope.cancel()


async def test_three_bad_checks_unroute_and_two_good_ones_route_again() -> None:
    async with watched("a", "b") as fleet:
        await fleet.wait(1)
        fleet.engines.health["a"] = 503
        await fleet.wait(10.5)
        assert fleet.state("a").condition is not Condition.UNHEALTHY
        await fleet.wait(5)
        assert fleet.state("a").condition is Condition.UNHEALTHY
        fleet.engines.health["a"] = 200
        await fleet.wait(10)
        assert fleet.state("a").condition is Condition.SLOW_START
        assert fleet.state("b").condition is Condition.HEALTHY


async def test_a_suspect_is_looked_at_at_once_and_a_refusal_is_believed() -> None:
    async with watched("a", "b") as fleet:
        await fleet.wait(1)
        fleet.engines.health["a"] = None
        fleet.poller.suspect(EndpointId("a"))
        fleet.poller.suspect(EndpointId("unknown"))
        await anyio.wait_all_tasks_blocked()
        assert fleet.state("a").condition is Condition.GONE
        fleet.engines.health["a"] = 503  # it listens again, and loads
        await fleet.wait(5)
        assert fleet.state("a").condition is Condition.GONE
        fleet.engines.health["a"] = 200
        await fleet.wait(2.5)
        assert fleet.state("a").condition is Condition.SLOW_START


async def test_a_partition_is_noticed_within_ten_seconds_though_nobody_asks() -> None:
    async with watched("a", "b") as fleet:
        await fleet.wait(1)  # it has just been looked at
        fleet.engines.health["a"] = -1
        await fleet.wait(9.5)
        assert fleet.state("a").condition is Condition.UNHEALTHY
        assert fleet.state("b").condition is Condition.HEALTHY


async def test_a_partition_that_a_request_ran_into_is_noticed_without_the_timer() -> None:
    async with watched("a", "b") as fleet:
        await fleet.wait(1)
        fleet.engines.health["a"] = -1
        fleet.poller.suspect(EndpointId("a"))
        await fleet.wait(4)
        assert fleet.state("a").condition is Condition.HEALTHY
        await fleet.wait(1)
        assert fleet.state("a").condition is Condition.UNHEALTHY


async def test_a_suspect_that_is_only_slow_keeps_the_benefit_of_the_doubt() -> None:
    async with watched("a", "b") as fleet:
        await fleet.wait(1)
        fleet.engines.health["a"] = 0
        fleet.poller.suspect(EndpointId("a"))
        await anyio.wait_all_tasks_blocked()
        assert fleet.state("a").condition is Condition.HEALTHY


async def test_readings_reach_the_state_and_grow_old() -> None:
    async with watched("a") as fleet:
        fleet.engines.pages["a"] = "2 7 100"
        fleet.take()
        await fleet.wait(6)
        load = fleet.state("a").engine_load
        assert load is not None
        assert (load.running, load.waiting) == (2, 7)
        del fleet.engines.pages["a"]
        await fleet.wait(6)
        fleet.take()
        assert fleet.state("a").engine_load is None


@pytest.mark.parametrize("page", ["<html>", "crash", "x" * 3_000_000])
async def test_a_page_that_means_nothing_is_no_data_and_no_illness(
    page: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched("a") as fleet:
        fleet.engines.pages["a"] = page
        fleet.take()
        with caplog.at_level(logging.WARNING):
            await fleet.wait(30)
        assert fleet.state("a").engine_load is None
        assert fleet.state("a").condition is Condition.HEALTHY
        said = [record for record in caplog.records if "load unknown" in record.getMessage()]
        assert len(said) == 1, "one warning, not one per look"


async def test_pages_are_read_only_for_a_balancer_or_while_requests_are_in_flight() -> None:
    async with watched("a") as fleet:
        fleet.engines.pages["a"] = "0 0 0"

        def looks() -> int:
            return sum(path == "/metrics" for _, path in fleet.engines.asked)

        await fleet.wait(20)
        assert looks() == 0
        held = fleet.take(profile="round_robin")
        await fleet.wait(20)
        seldom = looks()
        assert 3 <= seldom <= 5
        held.release(Outcome.OK)
        fleet.take(profile="load").release(Outcome.OK)
        await fleet.wait(20)
        assert looks() - seldom >= 15


async def test_an_engine_that_makes_no_progress_is_unrouted_until_it_does() -> None:
    async with watched("a", "b") as fleet:
        fleet.take()
        fleet.engines.pages.update(a="1 0 50", b="1 0 50")
        for tokens in range(66):
            fleet.engines.pages["b"] = f"1 0 {tokens}"
            await fleet.wait(1)
        assert fleet.state("a").condition is Condition.STUCK
        assert fleet.state("b").condition is Condition.HEALTHY
        fleet.engines.pages["a"] = "1 0 51"
        await fleet.wait(6)
        assert fleet.state("a").condition is Condition.SLOW_START


async def test_a_long_prompt_that_is_being_computed_is_progress() -> None:
    async with watched("a") as fleet:
        held = fleet.take(body_bytes=4 * 60_000)
        fleet.engines.pages["a"] = "1 0 50"
        await fleet.wait(125)
        assert fleet.state("a").condition is Condition.HEALTHY
        held.first_byte()
        await fleet.wait(7)
        assert fleet.state("a").condition is Condition.STUCK


async def test_a_new_table_ends_the_watch_over_what_left() -> None:
    async with watched("a", "b") as fleet:
        await fleet.wait(1)
        fleet.publish("b", incarnation="2")
        await fleet.wait(6)
        fleet.engines.asked.clear()
        await fleet.wait(12)
        assert {host for host, _ in fleet.engines.asked} == {"b"}
