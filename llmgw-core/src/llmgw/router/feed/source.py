"""The server's end of the feed: what it tells stand-alone routers, and what they tell it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass

import anyio
import msgspec
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from llmgw.adminapi.feed_messages import (
    PULSE_S,
    FeedPulse,
    FeedSnapshot,
    FeedSpend,
    RouterReport,
    decode_report,
    encode_line,
    encode_shares,
)
from llmgw.clock import Clock
from llmgw.contracts.sinks import Nudge
from llmgw.domain.endpoints import Endpoint, EndpointUsage, ModelStatus, RouterUsage
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.domain.keys import ApiKey, KeySpend
from llmgw.domain.shares import RouterShares, RouterWants
from llmgw.domain.usage import UsageBatch
from llmgw.errors import RequestError
from llmgw.router.feed.desk import ShareDesk

_SILENT_S = 15.0
"""A router that has said nothing for this long no longer counts; its requests may still run."""


@dataclass(frozen=True, slots=True)
class _Heard:
    report: RouterReport
    at: float


class FeedSource:
    """Implements EndpointSink, CatalogSink and UsageSource for all stand-alone routers together.

    store: adds a batch of usage, once however often it comes. nudges: who wakes models.
    """

    def __init__(
        self,
        *,
        cluster: str,
        server: str,
        clock: Clock,
        store: Callable[[UsageBatch], Awaitable[object]] | None = None,
        nudges: Nudge | None = None,
    ) -> None:
        self.desk = ShareDesk()
        self._clock = clock
        self._store = store
        self.nudges = nudges  #: may be set later, before anything is received
        self._snapshot = FeedSnapshot(
            cluster=cluster, server=server, epoch=Epoch(0), leading=False, serial=0
        )
        self._written: tuple[FeedSnapshot, bytes] | None = None
        self._spend: tuple[KeySpend, ...] = ()
        self._turn = anyio.Event()
        self._heard: dict[str, _Heard] = {}

    # -- what routers are told ---------------------------------------------------------------

    @property
    def snapshot(self) -> FeedSnapshot:
        """What routers are told now."""
        return self._snapshot

    def publish_endpoints(self, endpoints: tuple[Endpoint, ...], epoch: Epoch) -> None:
        self.desk.take_endpoints(endpoints)
        self._publish(msgspec.structs.replace(self._snapshot, endpoints=endpoints, epoch=epoch))

    def publish_catalog(
        self,
        models: tuple[ModelStatus, ...],
        epoch: Epoch,  # noqa: ARG002 - see below
    ) -> None:
        """Replace the catalog.

        epoch is not passed on: a server that has begun to lead knows the catalog before it has
        heard from its nodes. Under the new epoch its empty list of endpoints would take away
        what routers have; so an epoch begins for them with its first endpoints.
        """
        self._publish(msgspec.structs.replace(self._snapshot, models=models))

    def publish_keys(self, keys: Iterable[ApiKey]) -> None:
        """Replace the list of valid keys: a missing one is refused by every router at once."""
        listed = tuple(keys)
        self.desk.take_keys(listed)
        self._publish(msgspec.structs.replace(self._snapshot, keys=listed))

    def publish_leading(self, leading: bool) -> None:
        """Say whether this server leads."""
        self._publish(msgspec.structs.replace(self._snapshot, leading=leading))

    def publish_spend(self, spend: Iterable[KeySpend]) -> None:
        """Say what keys with budgets have spent."""
        self._spend = tuple(spend)
        self._wake()

    def _publish(self, snapshot: FeedSnapshot) -> None:
        if snapshot != self._snapshot:
            self._snapshot = msgspec.structs.replace(snapshot, serial=snapshot.serial + 1)
            self._wake()

    def _wake(self) -> None:
        self._turn.set()
        self._turn = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Send pulses until cancelled, and forget routers that have fallen silent."""
        task_status.started()
        while True:
            await self._clock.sleep(PULSE_S)
            now = self._clock.monotonic()
            self._heard = {
                router: heard for router, heard in self._heard.items() if now - heard.at < _SILENT_S
            }
            self._wake()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the snapshot as it is, then each newer one; what comes in between is skipped."""
        sent: FeedSnapshot | None = None
        spent: tuple[KeySpend, ...] = ()
        pulse = encode_line(FeedPulse())
        while True:
            turn = self._turn
            if sent is not self._snapshot:
                sent = self._snapshot
                yield self._line()
            elif spent is not self._spend:
                spent = self._spend
                yield encode_line(FeedSpend(spend=spent))
            else:
                await turn.wait()
                if sent is self._snapshot and spent is self._spend:
                    yield pulse

    def _line(self) -> bytes:
        """Return the snapshot as it is told, written once for all who listen, if anybody does."""
        if self._written is None or self._written[0] is not self._snapshot:
            self._written = (self._snapshot, encode_line(self._snapshot))
        return self._written[1]

    # -- what routers say ----------------------------------------------------------------------

    async def receive(self, body: bytes) -> bytes:
        """Take one report; return the answer, once its usage is stored.

        Raises RequestError if it is unreadable.
        """
        try:
            report = decode_report(body)
        except ValueError as error:
            raise RequestError(
                f"not a router's report: {error}", code="unreadable_report"
            ) from None
        self._heard[report.router] = _Heard(report, self._clock.monotonic())
        if self.nudges is not None:
            for model in report.nudges:
                self.nudges.nudge(model)
        if report.batch is not None and self._store is not None:
            await self._store(report.batch)
        in_force = RouterShares(serial=report.serial or 0, routers=report.routers)
        return encode_shares(
            self.share(report.router, report.wants, in_force if report.serial else None)
        )

    def share(self, router: str, wants: RouterWants, in_force: RouterShares | None) -> RouterShares:
        """Return what a router may use of limits that all keep together; see `ShareDesk.share`."""
        return self.desk.share(router, wants, in_force, self._clock.monotonic())

    def wants(self) -> RouterWants:
        """Return what all routers together could use."""
        return self.desk.wants(self._clock.monotonic())

    def usage(self) -> RouterUsage:
        """Return the sum over the routers that have reported lately."""
        now = self._clock.monotonic()
        return summed(
            heard.report.usage for heard in self._heard.values() if now - heard.at < _SILENT_S
        )

    @property
    def serial(self) -> int:
        return self._snapshot.serial

    def in_force(self) -> int:
        """Return the newest table that every router has in force which takes its table from here.

        `NOT_YET` if one has none of them.
        """
        now = self._clock.monotonic()
        return min(
            (
                heard.report.applied
                for heard in self._heard.values()
                if heard.report.applied is not None and now - heard.at < _SILENT_S
            ),
            default=self.serial,
        )

    def all_applied(self) -> bool:
        """Say whether every router that takes its table from here has the newest one in force."""
        return self.in_force() == self.serial


def summed(usages: Iterable[RouterUsage]) -> RouterUsage:
    """Return what several routers know, as if they were one."""
    known = [usage for usage in usages if usage.endpoints or usage.queued]
    if len(known) == 1:
        return known[0]
    endpoints: dict[EndpointId, EndpointUsage] = {}
    queued: dict[ModelName, int] = {}
    for usage in known:
        for id_, one in usage.endpoints.items():
            other = endpoints.get(id_)
            endpoints[id_] = one if other is None else _both(one, other)
        for model, count in usage.queued.items():
            queued[model] = queued.get(model, 0) + count
    return RouterUsage(endpoints=endpoints, queued=queued)


def _both(one: EndpointUsage, other: EndpointUsage) -> EndpointUsage:
    idle = [usage.idle_s for usage in (one, other) if usage.idle_s is not None]
    return EndpointUsage(idle_s=min(idle, default=None), in_flight=one.in_flight + other.in_flight)
