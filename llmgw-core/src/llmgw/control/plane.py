"""The control plane, wired: stores, observer, and the four loops around them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import anyio
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.config.server import ControlSettings
from llmgw.contracts.dispatch import Dispatcher
from llmgw.contracts.engine import EngineAdapter, Installable, LoadsAdapters, Sleeps
from llmgw.contracts.leases import LeaseStore
from llmgw.contracts.placement import PlacementPolicy
from llmgw.contracts.sinks import (
    CatalogSink,
    EndpointSink,
    Published,
    ReportSink,
    Sink,
    UsageSource,
)
from llmgw.contracts.weights import WeightSource
from llmgw.control.decide.checks import catalog_problems
from llmgw.control.decide.endpoints import MadeEndpoints
from llmgw.control.decide.lifecycle import SilenceLimits
from llmgw.control.decide.snapshot import Engine, Limits
from llmgw.control.loops.intake import Intake
from llmgw.control.loops.leadership import LeadershipLoop
from llmgw.control.loops.publisher import Publisher
from llmgw.control.loops.reconciler import EventLog, Reconciler
from llmgw.control.loops.spans import Spans
from llmgw.control.observe import AT_ONCE, Observer, Stores
from llmgw.control.state.desired import Desired
from llmgw.control.state.inventory import Inventory, NodeIntent
from llmgw.control.state.leases import Leadership, MemoryLeases
from llmgw.control.state.replicas import Replicas
from llmgw.control.state.wake import Wake
from llmgw.control.view import FleetView
from llmgw.domain.catalog import Model
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import NodeId
from llmgw.domain.replicas import ReplicaState
from llmgw.domain.weights import WeightFacts
from llmgw.errors import ConfigError, NotLeader, Problem
from llmgw.logs import get_logger

log = get_logger(__name__)


class _NoEvents:
    """The timeline goes to the log only."""

    def record(self, event: str, fields: Mapping[str, str]) -> None:
        """Keep nothing."""


class ControlPlane:
    """Places, reconciles and publishes. Knows neither routers nor how nodes are reached.

    `know_nodes` before `run`: what it does not know of, it does not wait for before it plans.
    """

    def __init__(
        self,
        settings: ControlSettings,
        *,
        engines: Mapping[str, EngineAdapter],
        policies: Mapping[str, PlacementPolicy],
        dispatcher: Dispatcher,
        clock: Clock,
        weight_sources: Mapping[str, WeightSource] | None = None,
        lease_store: LeaseStore | None = None,
        holder: str = "this server",
        endpoint_sinks: Sequence[EndpointSink] = (),
        catalog_sinks: Sequence[CatalogSink] = (),
        published: Published | None = None,
        sinks: Sequence[Sink] = (),
        usage: UsageSource | None = None,
        events: EventLog | None = None,
        agent_version: str = "",
        spans: Spans | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Wire it.

        lease_store: None makes this server the only one, which always leads. published: says
        what the sinks have in force; None: all at once. agent_version: newest `MAJOR.MINOR` of
        agents that get work; "" accepts any. spans: None: nobody follows what it does.
        """
        self.settings = settings
        self._adapters = engines
        self._weight_sources = weight_sources or {}
        self._dispatcher = dispatcher
        self._clock = clock
        policy = policies[settings.placement_policy]
        now = clock.monotonic()
        self._stores = Stores(
            inventory=Inventory(
                limits=_silence_limits(settings), drain_limit_s=settings.drain_limit, now=now
            ),
            replicas=Replicas(),
            desired=Desired(),
            leadership=Leadership(),
            wake=Wake(),
            facts={},
            learned={},
        )
        observer = Observer(
            self._stores,
            engines={
                name: Engine(
                    traits=adapter.traits,
                    installable=_locked_versions(adapter),
                    sleep_levels=_sleep_levels(adapter),
                    adapter_model=_adapter_model(adapter),
                )
                for name, adapter in engines.items()
            },
            limits=_limits(settings, agent_version),
            settle_s=settings.settle,
            usage=usage,
            published=published or AT_ONCE,
        )
        self._reconciler = Reconciler(
            self._stores,
            observer,
            policy=policy,
            dispatcher=dispatcher,
            events=events or _NoEvents(),
            clock=clock,
            interval_s=settings.interval,
            spans=spans,
        )
        made = MadeEndpoints()
        self._publisher = Publisher(
            self._stores,
            observer,
            endpoint_sinks=endpoint_sinks,
            catalog_sinks=catalog_sinks,
            published=published or AT_ONCE,
            sinks=sinks,
            made=made,
            clock=clock,
            interval_s=settings.publish_interval,
            spans=spans,
        )
        self._leadership = LeadershipLoop(
            self._stores,
            # Without a store the wall clock is the one number that grows over restarts.
            lease_store or MemoryLeases(term=int(clock.wall())),
            holder=holder,
            clock=clock,
            jitter=jitter,
        )
        self._intake = Intake(self._stores, clock)
        self.view = FleetView(
            self._stores, observer, self._reconciler, policy=policy, made=made, clock=clock
        )

    @property
    def reports(self) -> ReportSink:
        """Where the dispatcher passes on what nodes say."""
        return self._intake

    async def run(self, *, task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED) -> None:
        """Lead, reconcile, publish and listen to nodes until cancelled.

        Started with the dispatcher's bound address once nodes can connect. Raises ConfigError
        if it cannot be bound.
        """
        async with anyio.create_task_group() as group:
            address = await group.start(self._run_dispatcher)
            await group.start(self._leadership.run)
            await group.start(self._reconciler.run)
            await group.start(self._publisher.run)
            task_status.started(address)

    async def _run_dispatcher(self, *, task_status: TaskStatus[str]) -> None:
        await self._dispatcher.run(self._intake, task_status=task_status)

    def nudge(self, model: str) -> None:
        """Somebody waits for this model (or alias); an unknown name is ignored."""
        if (name := self._stores.desired.resolve(model)) is not None:
            self._stores.wake.nudge(name, now=self._clock.monotonic())

    def set_catalog(self, entries: Sequence[Model]) -> None:
        """Replace the catalog; the next pass changes what differs, and nothing else.

        Raises ConfigError with every problem found, in which case the old catalog stays.
        """
        if problems := self.check_catalog(entries):
            raise ConfigError("catalog", problems)
        self._stores.desired.set_catalog(entries, wall=self._clock.wall())
        self._stores.wake.keep({model.name for model in entries})
        self._stores.wake.ring()

    def retry(self, name: str) -> frozenset[NodeId]:
        """Try again at once what of a model (or alias) has failed; return the nodes where it had.

        A version that was given up on a node may start there again, and an engine that its agent
        would start again after a pause is replaced now. Raises NotLeader: only the leader knows
        what has failed, and its successor begins without that knowledge.
        """
        now, leadership = self._clock.monotonic(), self._stores.leadership
        if leadership.lease(now) is None:
            raise NotLeader(leadership.leader)
        model = self._stores.desired.resolve(name)
        if model is None:
            return frozenset()
        failed = set(self._stores.desired.retry(model))
        for record in self.view.replicas():
            is_waiting = record.replica.state is ReplicaState.BACKOFF and not record.leaving
            if record.replica.model == model and is_waiting:
                self._stores.desired.end(record, "an operator has it tried again", now=now)
                failed.update(record.nodes)
        self._stores.wake.ring()
        return frozenset(failed)

    def check_catalog(self, entries: Sequence[Model]) -> tuple[Problem, ...]:
        """Return everything wrong with these entries, () if they could be put in force."""
        return catalog_problems(entries, engines=self._adapters, sources=self._weight_sources)

    def know_nodes(self, intents: Sequence[NodeIntent]) -> None:
        """Take over what operators decided about nodes: at the start, and after each change."""
        for node in self._stores.inventory.know(
            intents, now=self._clock.monotonic(), wall=self._clock.wall()
        ):
            self._vacate(node)
        self._stores.wake.ring()

    def forget_node(self, node: NodeId) -> None:
        """Drop a node that will not come back, and what it was believed to run."""
        self._vacate(node)
        self._stores.inventory.forget(node)
        self._stores.wake.ring()

    def know_weights(self, ref: str, facts: WeightFacts) -> None:
        """Take in what file headers say of some weights, for the memory estimate."""
        self._stores.know_weights({ref: facts})
        self._stores.wake.ring()

    def know_memory(self, learned: Mapping[str, float]) -> None:
        """Take in measured MiB per device, by `fit.learned_key`."""
        self._stores.learned.update(learned)
        self._stores.desired.revision += 1
        self._stores.wake.ring()

    @property
    def learned(self) -> Mapping[str, float]:
        """What replicas were seen to take, by `fit.learned_key`, for the next server to know."""
        return dict(self._stores.learned)

    def publish_now(self) -> None:
        """Publish without waiting for the timer, if anything changed."""
        self._publisher.publish_now()

    async def step(self) -> float:
        """Take one turn of every loop, without timers: lead, reconcile, publish.

        Returns after how many seconds the reconciler wants to look again.
        """
        await self._leadership.try_once()
        wait_s = await self._reconciler.reconcile_once()
        self._publisher.publish_now()
        return wait_s

    def _vacate(self, node: NodeId) -> None:
        self._stores.replicas.forget_node(node)
        self._stores.desired.forget_node(node)


def _silence_limits(settings: ControlSettings) -> SilenceLimits:
    return SilenceLimits(
        suspect_after=settings.suspect_after,
        disconnected_after=settings.disconnected_after,
        lost_after=settings.lost_after,
    )


def _limits(settings: ControlSettings, agent_version: str) -> Limits:
    return Limits(
        port_range=settings.port_range,
        base_backoff=settings.base_backoff,
        max_backoff=settings.max_backoff,
        crash_limit=settings.crash_limit,
        drain_limit=settings.drain_limit,
        mgmt_interface=settings.mgmt_interface,
        agent_version=agent_version,
    )


def _adapter_model(adapter: EngineAdapter) -> Callable[[ShardSpec, str], str]:
    if not isinstance(adapter, LoadsAdapters):
        return lambda _, name: name

    def model(spec: ShardSpec, name: str) -> str:
        try:
            return adapter.adapter_model(spec, name)
        except Exception:  # a plugin's bug must not end the plans for other engines
            log.exception("engine adapter failed", engine=adapter.name, shard=spec.id)
            return name

    return model


def _locked_versions(adapter: EngineAdapter) -> frozenset[str]:
    return frozenset(adapter.locked_versions if isinstance(adapter, Installable) else ())


def _sleep_levels(adapter: EngineAdapter) -> Callable[[ShardSpec], frozenset[int]]:
    if not isinstance(adapter, Sleeps):
        return lambda _: frozenset()

    def levels(spec: ShardSpec) -> frozenset[int]:
        try:
            return frozenset(level for level in (1, 2) if adapter.sleep_requests(spec, level))
        except Exception:  # likewise: it is stopped instead
            log.exception("engine adapter failed", engine=adapter.name, shard=spec.id)
            return frozenset()

    return levels
