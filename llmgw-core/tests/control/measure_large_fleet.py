"""What a thousand nodes cost one server: `python measure_large_fleet.py [--elastic]`.

Runs the real control plane with its loops on nodes in memory (1,000 of 8 devices, 5,000
replicas), and prints how long a change takes from the report to the command, the longest time
that the event loop stood still, and how much CPU is used while nothing changes. As in a server, a
router and the feed of further routers hear on the same loop of every change.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import anyio
import anyio.lowlevel
import click

from llmgw.clock import SystemClock
from llmgw.config.server import ControlSettings, RouterSettings
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.plane import ControlPlane
from llmgw.domain.catalog import Model
from llmgw.domain.ids import ShardId
from llmgw.domain.replicas import ShardState
from llmgw.router.app import Router
from llmgw.router.balancers import llmgw_balancers
from llmgw.router.feed import FeedSource
from llmgw.server.feeding import UsageOfAll
from llmgw.server.fleetpage import fleet_page
from llmgw.server.memory import set_aside_what_stays
from llmgw.testing import values
from llmgw.testing.dispatch import MemoryDispatcher
from llmgw.testing.fake_adapter import FakeEngineAdapter

NODES, DEVICES, MODELS, REPLICAS = 1000, 8, 500, 10
RESEND_S = 5.0  #: an order that a node has just heard is not repeated sooner


class Stalls:
    """How long the event loop kept a timer of one millisecond waiting.

    Besides by the clock it is told in CPU seconds of the loop's own thread, which does not
    depend on what else runs on the machine.
    """

    def __init__(self) -> None:
        self.longest_s = self.computed_s = 0.0

    async def run(self) -> None:
        while True:
            began, computed = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            self.longest_s = max(self.longest_s, time.perf_counter() - began - 0.001)
            self.computed_s = max(self.computed_s, time.thread_time() - computed)

    def reset(self) -> None:
        self.longest_s = self.computed_s = 0.0


def catalog(*, elastic: bool) -> list[Model]:
    scale = {"min": REPLICAS, "max": REPLICAS + 1 if elastic else REPLICAS}
    return [
        values.model(f"m{index:03}", values.profile(devices=1), replicas=scale)
        for index in range(MODELS)
    ]


class Site:
    """The plane, its nodes and its readers."""

    def __init__(self, *, elastic: bool) -> None:
        self.elastic = elastic
        self.nodes, self.stalls, clock = MemoryDispatcher(), Stalls(), SystemClock()
        balancers = {item.name: item for item in llmgw_balancers()}
        router = Router(RouterSettings(), balancers=balancers, clock=clock)
        sinks = (router, FeedSource(cluster="c", server="s", clock=clock))
        self.plane = ControlPlane(
            ControlSettings(settle="0s"),
            engines={values.ENGINE: FakeEngineAdapter()},
            policies={"pack": Pack()},
            dispatcher=self.nodes,
            clock=clock,
            endpoint_sinks=sinks,
            catalog_sinks=sinks,
            usage=UsageOfAll(sinks),
        )

    async def fill(self) -> None:
        """Bring the nodes, then the catalog, and let every engine become ready."""
        self.plane.set_catalog([])
        for index in range(NODES):
            name = f"n{index:04}"
            self.nodes.join(values.inventory(name, devices=DEVICES))
        await self._calm()
        self.stalls.reset()
        began = time.perf_counter()
        self.plane.set_catalog(catalog(elastic=self.elastic))
        while len(self.nodes.sent) < MODELS * REPLICAS:  # noqa: ASYNC110 - watched from outside
            await anyio.sleep(0.01)
        self.say("5,000 replicas ordered onto the empty fleet", time.perf_counter() - began)
        self.say_stalls()
        await self._let_ready()

    async def _let_ready(self) -> None:
        for count, node in enumerate(list(self.nodes.nodes.values())):
            for shard, report in list(node.shards.items()):
                if report.shard.state is ShardState.ASSIGNED:
                    self.nodes.enter(shard, ShardState.STARTING, ShardState.READY)
            if count % 20 == 0:
                await anyio.lowlevel.checkpoint()
        await self._calm()

    async def _calm(self) -> None:
        """Wait until the loops have nothing to do."""
        passes = -1
        while passes != self.plane.view.standing().passes:
            passes = self.plane.view.standing().passes
            await anyio.sleep(1.0)

    async def change_one_node_at_a_time(self, count: int = 100) -> None:
        """Let one engine vanish; measure until another start has been ordered for it."""
        taken: list[float] = []
        spent: list[float] = []
        await anyio.sleep(RESEND_S)
        self.stalls.reset()
        for number in range(count):
            if number % 10 == 0:
                self.nodes.beat()  # or a thousand silent nodes would be what is measured
            node = self.nodes.nodes[next(n for n in list(self.nodes.nodes)[number * 5 :])]
            shard = next(iter(node.shards), None)
            if shard is None:
                continue
            sent = len(self.nodes.sent)
            began, computed = time.perf_counter(), time.process_time()
            self.nodes.enter(shard, ShardState.STOPPED)
            while len(self.nodes.sent) == sent:  # noqa: ASYNC110 - watched from outside
                await asyncio.sleep(0.0005)
            taken.append(time.perf_counter() - began)
            spent.append(time.process_time() - computed)
            started = ShardId(self.nodes.sent[-1][1].spec.id)  # type: ignore[union-attr]
            self.nodes.enter(started, ShardState.STARTING, ShardState.READY)
            await anyio.sleep(0.3)
        self.say("one node changes: median until the command", _share(taken, 0.5))
        self.say("  at p99", _share(taken, 0.99))
        self.say("  median of the CPU spent until then", _share(spent, 0.5))
        self.say("  at p99", _share(spent, 0.99))
        self.say_stalls()

    async def read(self) -> None:
        """Ask for everything that people and monitoring ask for."""
        view = self.plane.view
        questions: Sequence[tuple[str, Callable[[], object]]] = (
            ("standing", view.standing),
            ("nodes", view.nodes),
            ("replicas", view.replicas),
            ("models", view.models),
        )
        for name, question in questions:
            took: list[float] = []
            for _ in range(5):
                self.nodes.beat()
                began = time.perf_counter()
                question()
                took.append(time.perf_counter() - began)
                await anyio.sleep(0.05)
            self.say(f"view: {name}, longest of 5", max(took))
        self.stalls.reset()
        for _ in range(5):
            assert await fleet_page(view)
        self.say("page of metrics: longest stall of the loop", self.stalls.longest_s)

    async def idle(self, seconds: float = 30.0) -> None:
        """Measure while there are only heartbeats, each node's every five seconds."""
        await self._calm()
        passes = self.plane.view.standing().passes
        began, beating_s = time.process_time(), 0.0
        for _ in range(round(seconds / 5)):
            await anyio.sleep(5.0)
            beats = time.process_time()
            self.nodes.beat()
            beating_s += time.process_time() - beats
        cpu_s = time.process_time() - began
        self.say("CPU a minute while nothing changes", cpu_s * 60 / seconds)
        self.say("  of it taking in heartbeats", beating_s * 60 / seconds)
        passes = self.plane.view.standing().passes - passes
        click.echo(f"  {passes} passes in {seconds:.0f} s")

    def say_stalls(self) -> None:
        self.say("  longest stall of the loop meanwhile", self.stalls.longest_s)
        self.say("  most CPU of the loop in one go", self.stalls.computed_s)

    def say(self, what: str, seconds: float) -> None:
        click.echo(f"{what:55} {seconds * 1e3:9.1f} ms")


def _share(values_s: list[float], share: float) -> float:
    return sorted(values_s)[min(len(values_s) - 1, math.ceil(len(values_s) * share) - 1)]


async def measure(*, elastic: bool) -> None:
    site = Site(elastic=elastic)
    async with anyio.create_task_group() as group:
        await group.start(site.plane.run)
        gc.freeze()  # as a server does once it has started
        set_aside_what_stays()
        async with anyio.create_task_group() as watching:
            watching.start_soon(site.stalls.run)
            await site.fill()
            await site.change_one_node_at_a_time()
            await site.read()
            watching.cancel_scope.cancel()
        await site.idle()
        group.cancel_scope.cancel()


@click.command()
@click.option("--elastic", is_flag=True, help="Let every model's number of replicas vary.")
def main(elastic: bool) -> None:
    logging.disable(logging.WARNING)  # a line a replica is not what is measured
    anyio.run(partial(measure, elastic=elastic))


if __name__ == "__main__":
    main()
