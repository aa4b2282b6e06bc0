"""Tells routers and sinks what serves, and only when it has changed."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.contracts.sinks import CatalogSink, EndpointSink, Published, Sink
from llmgw.control.decide.endpoints import MadeEndpoints, find_endpoints, model_statuses
from llmgw.control.decide.snapshot import ClusterSnapshot
from llmgw.control.loops.spans import Spans, note_ready
from llmgw.control.observe import Fingerprint, Observer, Stores
from llmgw.control.state.wake import Bell
from llmgw.domain.endpoints import Endpoint, ModelStatus
from llmgw.domain.ids import Epoch
from llmgw.domain.replicas import ReplicaState
from llmgw.errors import TransientError
from llmgw.logs import get_logger

log = get_logger(__name__)

#: A sink that failed for a passing reason is tried again after this long, doubled to the cap.
SINK_RETRY_S = 1.0
SINK_RETRY_CAP_S = 60.0

#: What could not be published is tried again after this long.
FAILED_S = 5.0

State = tuple[tuple[Endpoint, ...], tuple[ModelStatus, ...]]


class Publisher:
    """Events drive it; the publish interval is the backstop."""

    def __init__(
        self,
        stores: Stores,
        observer: Observer,
        *,
        endpoint_sinks: Sequence[EndpointSink],
        catalog_sinks: Sequence[CatalogSink],
        published: Published,
        sinks: Sequence[Sink],
        made: MadeEndpoints,
        clock: Clock,
        interval_s: float,
        spans: Spans | None = None,
    ) -> None:
        """made: shared with views, so that they need not make what is published already.

        spans: None: nobody follows from outside how long starts take.
        """
        self._stores = stores
        self._observer = observer
        self._endpoint_sinks = endpoint_sinks
        self._catalog_sinks = catalog_sinks
        self._told = published
        self._feeds = [_SinkFeed(sink, clock) for sink in sinks]
        self._clock = clock
        self._interval_s = interval_s
        self._spans = spans
        self._measured: dict[str, float] = {}  #: start of the order that was measured, by replica
        self._made = made
        self._published: Fingerprint | None = None
        self._endpoints: tuple[Epoch, tuple[Endpoint, ...]] | None = None
        self._statuses: tuple[Epoch, tuple[ModelStatus, ...]] | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Publish at every bell, and at the latest every interval, until cancelled.

        What fails is a bug of ours, told with its traceback and tried again: routers go on with
        the table that they have.
        """
        async with anyio.create_task_group() as group:
            for feed in self._feeds:
                group.start_soon(feed.run)
            task_status.started()
            while True:
                try:
                    await self._observer.catch_up(self._clock)
                    began = self._clock.monotonic()
                    self.publish_now()
                except Exception:
                    log.exception("publishing failed", retry_in_s=FAILED_S)
                    self._published = self._endpoints = self._statuses = None
                    await self._clock.sleep(FAILED_S)
                    continue
                # Never more than half of the loop's time, however loud the bell.
                await self._clock.sleep(self._clock.monotonic() - began)
                await self._stores.wake.publisher.wait_rung(self._clock, self._interval_s)

    def publish_now(self) -> None:
        """Look once, and pass on what differs from what was passed on last.

        Until the fleet has settled no endpoint is passed on: routers serve the table that they
        kept, and half a list would take away what still serves.
        """
        self._stores.wake.publisher.rung_nowait()
        now = self._clock.monotonic()
        fingerprint = self._observer.fingerprint(now)
        if fingerprint == self._published:
            return
        self._published = fingerprint
        snapshot = self._observer.observe(now)
        self._measure_starts(snapshot)
        endpoints = find_endpoints(snapshot, made=self._made)
        statuses = model_statuses(
            snapshot,
            self._made,
            wake_s=self._stores.wake.wake_s,
            created=self._stores.desired.catalog.created,
        )
        epoch = snapshot.epoch
        # Statuses first: a router must know a model before it hears of its endpoints.
        if self._statuses != (epoch, statuses):
            self._statuses = (epoch, statuses)
            for catalog_sink in self._catalog_sinks:
                catalog_sink.publish_catalog(statuses, epoch)
        if not snapshot.settled:
            return
        if self._endpoints != (epoch, endpoints):
            self._endpoints = (epoch, endpoints)
            for endpoint_sink in self._endpoint_sinks:
                endpoint_sink.publish_endpoints(endpoints, epoch)
        self._stores.desired.note_withdrawals(endpoints, self._told.serial)
        for feed in self._feeds:
            feed.offer((endpoints, statuses))

    def _measure_starts(self, snapshot: ClusterSnapshot) -> None:
        """Learn how long models take from the order, to start or to wake, until they are ready."""
        for record in snapshot.replicas:
            order = record.order
            if order is None or record.replica.state is not ReplicaState.READY:
                continue
            if self._measured.get(record.id) != order.since:
                self._measured[record.id] = order.since
                took_s = max(0.0, record.replica.since - order.since)
                self._stores.wake.measured(record.replica.model, took_s)
                if self._spans is not None:
                    note_ready(self._spans, record, order, took_s=took_s)
        if len(self._measured) > len(snapshot.replicas):
            known = {record.id for record in snapshot.replicas}
            self._measured = {key: since for key, since in self._measured.items() if key in known}


class _SinkFeed:
    """Carries the newest state to one plugin, which may be slow or fail, without holding others."""

    def __init__(self, sink: Sink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._newest: State | None = None
        self._bell = Bell()

    def offer(self, state: State) -> None:
        if state != self._newest:
            self._newest = state
            self._bell.ring()

    async def run(self) -> None:
        retry_s: float | None = None  # None: the sink has taken what there is
        while True:
            wait_s = SINK_RETRY_CAP_S if retry_s is None else retry_s
            rung = await self._bell.wait_rung(self._clock, wait_s)
            if self._newest is not None and (rung or retry_s is not None):
                retry_s = await self._publish(self._newest, retry_s)

    async def _publish(self, state: State, waited_s: float | None) -> float | None:
        """Return after how long to try again, None for not before the next change."""
        try:
            await self._sink.publish(*state)
        except TransientError as error:
            retry_s = SINK_RETRY_S if waited_s is None else min(SINK_RETRY_CAP_S, waited_s * 2)
            log.warning("sink failed", sink=self._sink.name, why=error, retry_s=retry_s)
            return retry_s
        except Exception:
            # A plugin's bug must not stop the control plane; the next change tries again.
            log.exception("sink failed", sink=self._sink.name)
        return None
