"""The data plane, composed: tables, rooms, the protocol class for uvicorn, the ASGI application."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import anyio.to_thread
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from llmgw.clock import Clock, SystemClock
from llmgw.config.server import RouterSettings, TracingSettings
from llmgw.contracts.balancing import BalancerFactory
from llmgw.contracts.engine import EngineAdapter
from llmgw.contracts.pairing import Pairs
from llmgw.contracts.sinks import Nudge
from llmgw.domain.endpoints import Endpoint, ModelStatus, RouterUsage
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.domain.shares import RouterShares, RouterWants
from llmgw.domain.usage import UsageRecord
from llmgw.errors import ConfigError, Problem
from llmgw.router.access import AccessLog, AccessRecord, ByteSink, RotatingFile, trace_id_of
from llmgw.router.admission import Admission
from llmgw.router.api import build_api
from llmgw.router.forward import Ending, ForwardParts
from llmgw.router.forward.deaths import Deaths, InFlight
from llmgw.router.forward.legs import Legs
from llmgw.router.forward.parts import Tracing
from llmgw.router.front import Connection, Cors, Front, Limits, exchanges
from llmgw.router.ingress import Ingress
from llmgw.router.ingress.ingress import Tables
from llmgw.router.keys import KeyTable
from llmgw.router.loads import LoadPoller
from llmgw.router.metrics import Now, RouterMetrics
from llmgw.router.outbox import Outbox
from llmgw.router.pool import ConnectionPool, Looks
from llmgw.router.routes import hot_table
from llmgw.router.selection import Outcome, Reservation, Selector, compile_profiles
from llmgw.router.table import Table, TableMaker
from llmgw.router.timers import TimerWheel
from llmgw.router.usage import UsageLedger

_HOUSEKEEPING_S = 0.25
_NOT_COMPUTED = frozenset(
    {Outcome.CONNECT_FAILED, Outcome.ENGINE_BUSY, Outcome.CLIENT_ERROR, Outcome.ENGINE_ERROR}
)


class Router:
    """One router. Implements EndpointSink, CatalogSink and UsageSource for whoever feeds it.

    Give `protocol` to `uvicorn.Config(http=…)` and `asgi` to its first argument; run `run`
    beside it. state_dir: where access records go; None, and no access_stream: nowhere.
    keys_open: no API key is asked for. Raises ConfigError where tracing is asked for and its
    packages are missing.
    """

    def __init__(
        self,
        settings: RouterSettings,
        *,
        balancers: Mapping[str, BalancerFactory],
        adapters: Mapping[str, EngineAdapter] | None = None,
        clock: Clock | None = None,
        state_dir: Path | None = None,
        keys_open: bool = True,
        access_stream: ByteSink | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.wheel = TimerWheel(self.clock)
        self.metrics = RouterMetrics()
        self.ledger = UsageLedger()
        self.keys = KeyTable(self.clock, is_open=keys_open)
        self.selector = Selector(settings, compile_profiles(settings, balancers), self.clock)
        self.admission: Admission[Reservation] = Admission(
            settings, self.selector.reserve, self.clock
        )
        self.selector.on_room = self.admission.room
        self.keys.on_change = self.admission.check_keys
        outbox = Outbox()
        self.pool = ConnectionPool(
            self.wheel, connect_limit_s=settings.deadlines.connect, outbox=outbox
        )
        self.loads = LoadPoller(
            self.selector,
            adapters or {},
            settings.health,
            self.clock,
            get=Looks(self.pool).get,
        )
        self._legs = Legs(self.metrics)
        self._tables = Tables(Table(), self.keys)
        self._maker = TableMaker()
        self._endpoints: tuple[Endpoint, ...] = ()
        self._models: tuple[ModelStatus, ...] = ()
        self._epoch = Epoch(0)
        if access_stream is None and state_dir is not None:
            access_stream = RotatingFile(state_dir / "access.jsonl")
        self._access: AccessLog | None = None
        if settings.access_log and access_stream is not None:
            self._access = AccessLog(access_stream)
        self._draining = False
        self._tracing = _tracing_of(settings.tracing)
        self.forward = ForwardParts(
            deadlines=settings.deadlines,
            clock=self.clock,
            wheel=self.wheel,
            selector=self.selector,
            admission=self.admission,
            deaths=Deaths(self.pool, self.selector, self.clock, self._in_flight),
            pool=self.pool,
            legs=self._legs,
            metrics=self.metrics,
            suspect=self.loads.suspect,
            pairings={
                name: adapter.pairing
                for name, adapter in (adapters or {}).items()
                if isinstance(adapter, Pairs)
            },
            ended=self._tracing.ending(self._ended) if self._tracing else self._ended,
            tracing=self._tracing,
        )
        self.front = Front(
            limits=Limits.of(settings),
            wheel=self.wheel,
            metrics=self.metrics,
            hot=hot_table(settings.path_prefix),
            ingress=Ingress(self._tables, self.forward),
            cors=Cors(settings.cors_origins),
            outbox=outbox,
        )
        self.protocol = partial(Connection, self.front)
        self.asgi = build_api(self, settings.path_prefix)

    # -- being fed -------------------------------------------------------------------------

    @property
    def nudges(self) -> Nudge | None:
        """Who wakes sleeping models."""
        return self.admission.nudges

    @nudges.setter
    def nudges(self, nudges: Nudge | None) -> None:
        self.admission.nudges = nudges

    @property
    def table(self) -> Table:
        """What is served now."""
        return self._tables.table

    def publish_endpoints(self, endpoints: tuple[Endpoint, ...], epoch: Epoch) -> None:
        """Replace the endpoints. Connections to those that left, or restarted, are given up."""
        kept = {endpoint.id: endpoint for endpoint in endpoints}
        for old in self._endpoints:
            new = kept.get(old.id)
            if new is old:
                continue
            if new is None or not new.is_same_process(old):
                self.pool.forget(old.id)
        self._endpoints, self._epoch = endpoints, epoch
        self._swap()

    def publish_catalog(self, models: tuple[ModelStatus, ...], epoch: Epoch) -> None:
        """Replace the catalog."""
        self._models, self._epoch = models, epoch
        self._swap()

    def _swap(self) -> None:
        table = self._maker.make(self._endpoints, self._models, self._epoch)
        self._tables.table = table
        self.selector.update(table)
        self.admission.refresh(table)
        ids = frozenset(endpoint.id for endpoint in self._endpoints)
        self._legs.clear()
        self.metrics.keep_only(
            frozenset(str(item) for item in ids), frozenset(route.name for route in table.routes)
        )

    def _in_flight(self) -> Iterable[InFlight]:
        return exchanges(self.front)

    def usage(self) -> RouterUsage:
        """Return how idle each endpoint is, and how many wait for each model."""
        return RouterUsage(endpoints=self.selector.usage(), queued=self.admission.queued())

    def wants(self) -> RouterWants:
        """Return what this router could use of shared limits. One caller, about once a second."""
        queued = self.admission.queued()
        return RouterWants(keys=self.keys.wants(), endpoints=self.selector.wants(queued))

    def take_shares(self, shares: RouterShares) -> None:
        """Keep to these shares of limits; until the first, the router has all to itself."""
        self.keys.take_shares(shares)
        self.selector.take_shares(shares)

    # -- being run -------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether new requests should come here."""
        return not self._draining and bool(self.table.routes)

    @property
    def is_draining(self) -> bool:
        return self._draining

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Turn the timers and keep house, until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self.wheel.run)
                await tasks.start(self.loads.run)
                tasks.start_soon(self._keep_house)
                task_status.started()
        finally:
            await self.pool.aclose()
            if self._access is not None:
                self._access.close()
            if self._tracing is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._tracing.close)

    async def _keep_house(self) -> None:
        ticks = 0
        while True:
            await self.clock.sleep(_HOUSEKEEPING_S)
            ticks += 1
            self.admission.tick()
            if ticks % 4 == 0 and self._access is not None:
                self._access.flush()

    async def drain(self, limit_s: float) -> None:
        """Become unready, then wait until no request is left, at most `limit_s`; who then still
        waits in line is told why, before connections are cut."""
        self._draining = True
        with anyio.move_on_after(limit_s):
            while self.admission.queued() or any(
                state.in_flight for state in self.selector.states()
            ):
                await self.clock.sleep(0.1)
        self.admission.refuse_all()

    async def metrics_page(self) -> bytes:
        """Return the metrics in Prometheus' text format, written without holding the loop."""
        return await self.metrics.render(
            Now(
                queued=sum(self.admission.queued().values()),
                idle_connections=self.pool.idle,
                access_dropped=self._access.dropped if self._access else 0,
            )
        )

    # -- accounting ------------------------------------------------------------------------

    def _ended(self, ending: Ending) -> None:
        envelope, usage = ending.envelope, ending.usage
        headers = envelope.passed_headers
        prompt = cached = completion = None
        if usage is not None:
            prompt, completion = usage.prompt_tokens, usage.completion_tokens
            cached = usage.cached_tokens
        if usage is not None:
            tokens: int | None = (prompt or 0) + (completion or 0)
        else:
            idle = ending.outcome is None or ending.outcome in _NOT_COMPUTED
            tokens = 0 if idle else None
        envelope.charge.end(tokens)
        at = self.clock.wall()
        self.ledger.add(
            UsageRecord(
                at=at,
                key=envelope.grant.key_id,
                model=ModelName(envelope.target.name),
                endpoint=EndpointId(ending.endpoint) if ending.endpoint is not None else None,
                status=ending.status,
                prompt_tokens=prompt or 0,
                cached_tokens=cached or 0,
                completion_tokens=completion or 0,
                first_byte_s=ending.first_token_s or 0.0,
                duration_s=ending.duration_s,
            )
        )
        if self._access is not None:
            self._access.add(
                AccessRecord(
                    time=at,
                    request_id=envelope.request_id.decode("ascii"),
                    route=envelope.route.path,
                    model=envelope.target.name,
                    status=ending.status,
                    duration_s=ending.duration_s,
                    trace_id=trace_id_of(headers) if b"traceparent" in headers else "",
                    client=envelope.client,
                    key=envelope.grant.key_id,
                    endpoint=ending.endpoint or "",
                    prefill=ending.prefill,
                    outcome=ending.outcome or "",
                    attempts=ending.attempts,
                    stream=envelope.stream,
                    first_token_s=ending.first_token_s,
                    prompt_tokens=prompt,
                    cached_tokens=cached,
                    completion_tokens=completion,
                )
            )


def _tracing_of(settings: TracingSettings | None) -> Tracing | None:
    """Return what makes spans; imported only where it is asked for, since its packages are an
    extra."""
    if settings is None:
        return None
    try:
        tracing = importlib.import_module("llmgw.router.tracing")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("llmgw"):
            raise
        message = "needs a package that is not installed; run: pip install 'llmgw-core[otel]'"
        raise ConfigError("settings", [Problem(path="router.tracing", message=message)]) from None
    return cast(Tracing, tracing.RequestTracing(settings))
