"""The server's end of the feed, and the table on disk that outlives every process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.contracts.sinks import CatalogSink, UsageSource
from llmgw.control.plane import ControlPlane
from llmgw.domain.endpoints import RouterUsage
from llmgw.domain.shares import RouterShares, RouterWants
from llmgw.logs import get_logger
from llmgw.router.feed import FeedClient, FeedSource, LastTable
from llmgw.router.feed.source import summed
from llmgw.server.static import EndpointsOfBoth

log = get_logger(__name__)

LAST_TABLE_FILE = "table.json"
_LOOK_S = 2.0
_SHARE_S = 1.0
_OWN = "own"


class UsageOfAll:
    """What all routers know together: the one in this process, and those of the feed."""

    def __init__(self, sources: Sequence[UsageSource]) -> None:
        self._sources = sources

    def usage(self) -> RouterUsage:
        return summed(source.usage() for source in self._sources)


class SharedRouter(Protocol):
    """The router in this process: one of those that keep limits together."""

    def wants(self) -> RouterWants: ...

    def take_shares(self, shares: RouterShares) -> None: ...


class Feeding:
    """Runs the feed, says on it who leads, and keeps what it tells on disk.

    A server that starts serves the last table at once: engines have most likely run on, and
    the fleet takes seconds to report.
    """

    def __init__(
        self,
        feed: FeedSource,
        last_table: LastTable | None,
        *,
        plane: ControlPlane | None,
        router: SharedRouter | None,
        peers: FeedClient | None = None,
        clock: Clock,
    ) -> None:
        """last_table: None keeps nothing; what the configuration says needs no keeping.

        router: of this process; None: it gets no requests, since workers do. peers: tells the
        other servers what is reported here; None: there are none.
        """
        self.feed = feed
        self._last_table = last_table
        self._plane = plane
        self._router = router
        self._peers = peers
        self._clock = clock
        self._saved = feed.snapshot

    async def restore(self, endpoints: EndpointsOfBoth, models: CatalogSink) -> None:
        """Publish the static endpoints, with those of the fleet that were saved last."""
        last = None
        if self._last_table is not None:
            last = await anyio.to_thread.run_sync(self._last_table.load)
        if last is None or last.cluster != self.feed.snapshot.cluster:
            endpoints.publish()
            return
        models.publish_catalog(last.models, last.epoch)
        fleet = tuple(one for one in last.endpoints if one.replica is not None)
        endpoints.publish_endpoints(fleet, last.epoch)
        log.info("serving the table on disk", endpoints=len(fleet), epoch=last.epoch)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Feed and keep until cancelled."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.feed.run)
            tasks.start_soon(self._keep)
            if self._peers is not None:
                tasks.start_soon(self._peers.run)
            if self._router is not None:
                tasks.start_soon(self._share_with, self._router)
            task_status.started()

    async def _keep(self) -> None:
        while True:
            await self._clock.sleep(_LOOK_S)
            if self._plane is not None:
                standing = self._plane.view.standing()
                self.feed.publish_leading(standing.leading)
                if standing.leading:
                    self.feed.desk.bound = RouterShares()
            await self._save()

    async def _share_with(self, router: SharedRouter) -> None:
        in_force: RouterShares | None = None
        while True:
            in_force = self.feed.share(_OWN, router.wants(), in_force)
            router.take_shares(in_force)
            await self._clock.sleep(_SHARE_S)

    async def _save(self) -> None:
        snapshot = self.feed.snapshot
        if self._last_table is not None and snapshot != self._saved:
            await anyio.to_thread.run_sync(self._last_table.save, snapshot)
            self._saved = snapshot
