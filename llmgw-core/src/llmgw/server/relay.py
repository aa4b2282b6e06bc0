"""The parent of a stand-alone router's workers: one feed from each server, one on to the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.config.loading import Loaded
from llmgw.domain.endpoints import Endpoint, ModelStatus, RouterUsage
from llmgw.domain.ids import Epoch
from llmgw.domain.keys import ApiKey, KeySpend
from llmgw.domain.secret import Secret
from llmgw.domain.shares import RouterShares, RouterWants
from llmgw.domain.usage import UsageBatch
from llmgw.logs import get_logger
from llmgw.router.feed import FeedClient, FeedSource, LastTable
from llmgw.router.feed.client import feed_client
from llmgw.router.front import Connection, Front, Limits
from llmgw.router.keys import KeyTable
from llmgw.router.metrics import RouterMetrics
from llmgw.router.timers import TimerWheel
from llmgw.router.usage import UsageLedger
from llmgw.server.listeners import address_of, bound, shared
from llmgw.server.router_admin import feed_page, router_admin
from llmgw.server.serving import HttpListener
from llmgw.server.standalone import (
    TABLE_FILE,
    RouterServing,
    drain_limit_s,
    wait_reported,
    warn_of_exposure,
)
from llmgw.server.statedir import admin_token, prepare
from llmgw.server.tls import certificate_of, servers_trust
from llmgw.server.workers import Workers, worker_flags

log = get_logger(__name__)

_ADMIN_DRAIN_S = 1.0
#: A worker repeats a batch within seconds, and has one under way at a time.
_REMEMBERED_BATCHES = 4096


class _KeysOfWorkers(KeyTable):
    """Passes keys on; nobody is authorised here."""

    def __init__(self, clock: Clock, feed: FeedSource) -> None:
        super().__init__(clock, is_open=False)
        self._feed = feed

    def replace(self, keys: Iterable[ApiKey], spend: Iterable[KeySpend] = ()) -> None:
        self._feed.publish_keys(keys)
        self.learn(spend)

    def learn(self, spend: Iterable[KeySpend]) -> None:
        self._feed.publish_spend(spend)


class Relay:
    """`router.feed.Fed` for all workers together."""

    def __init__(self, clock: Clock, *, name: str) -> None:
        self.feed = FeedSource(cluster="", server=name, clock=clock, store=self._take)
        self.keys: KeyTable = _KeysOfWorkers(clock, self.feed)
        self.ledger = UsageLedger()
        self._taken: deque[str] = deque(maxlen=_REMEMBERED_BATCHES)

    def publish_endpoints(self, endpoints: tuple[Endpoint, ...], epoch: Epoch) -> None:
        self.feed.publish_endpoints(endpoints, epoch)

    def publish_catalog(self, models: tuple[ModelStatus, ...], epoch: Epoch) -> None:
        self.feed.publish_catalog(models, epoch)

    def usage(self) -> RouterUsage:
        return self.feed.usage()

    def wants(self) -> RouterWants:
        return self.feed.wants()

    def take_shares(self, shares: RouterShares) -> None:
        """Pass on what the servers give to all workers together."""
        self.feed.desk.bound = shares

    async def _take(self, batch: UsageBatch) -> None:
        """Keep a worker's usage until a server has stored it. Counted once, however often sent."""
        if batch.id not in self._taken:
            self._taken.append(batch.id)
            for record in batch.records:
                self.ledger.add(record)


class RelayedRouter:
    """`llmgw router --workers N`. `run` serves until `stop`."""

    def __init__(
        self, loaded: Loaded, *, servers: Sequence[str], token: Secret, clock: Clock
    ) -> None:
        """servers: URLs of admin listeners. token: opens the feed there."""
        self._loaded = loaded
        self._servers = servers
        self._token = token
        self._clock = clock
        self._stopping = anyio.Event()

    def stop(self) -> None:
        """Let every worker end its streams."""
        self._stopping.set()

    def reload(self) -> None:
        """Nothing: what a router serves comes from its servers."""

    async def run(self, *, task_status: TaskStatus[RouterServing]) -> None:
        """Serve. Raises ConfigError if an address or the state folder cannot be used."""
        settings = self._loaded.settings
        warn_of_exposure(settings)
        await anyio.to_thread.run_sync(prepare, self._loaded.state_dir)
        token = admin_token(self._loaded.state_dir, settings.auth.admin_token_file)
        certificate = certificate_of(settings.tls)
        with ExitStack() as stack:
            admin_address = {"admin_listen": settings.admin_listen}
            admin_socket = stack.enter_context(bound(admin_address))["admin_listen"]
            sockets = stack.enter_context(shared(settings.listen, settings.workers))
            relay = Relay(self._clock, name=str(address_of(sockets[0])))
            client = FeedClient(
                self._servers,
                self._token,
                relay,
                self._clock,
                last_table=LastTable(self._loaded.state_dir / TABLE_FILE),
                connect=partial(feed_client, trust=servers_trust(settings.tls)),
                has_in_force=relay.feed.all_applied,
            )
            relay.feed.nudges = client
            limit_s = drain_limit_s(self._loaded)
            workers = Workers(
                sockets,
                feed=relay.feed,
                token=token,
                flags=worker_flags(settings, address_of(sockets[0]), limit_s),
                state_dir=self._loaded.state_dir / "workers",
                drain_limit_s=limit_s,
                clock=self._clock,
            )
            wheel = TimerWheel(self._clock)
            limits = Limits.of(settings.router)
            front = Front(limits=limits, wheel=wheel, metrics=RouterMetrics())
            admin = HttpListener(
                router_admin(
                    is_ready=lambda: bool(relay.feed.snapshot.endpoints),
                    is_stale=lambda: client.is_stale,
                    metrics_page=lambda: workers.metrics(feed_page(client.is_stale)),
                    token=token,
                ),
                admin_socket,
                protocol=partial(Connection, front),
                tls=certificate,
                handshake_s=limits.head_s,
                drain_limit_s=_ADMIN_DRAIN_S,
            )
            async with anyio.create_task_group() as base:
                await base.start(wheel.run)
                await base.start(relay.feed.run)
                await base.start(client.run)
                if certificate is not None:
                    base.start_soon(certificate.follow, self._clock)
                async with anyio.create_task_group() as listeners:
                    await listeners.start(admin.run)
                    await listeners.start(workers.run)
                    serving = RouterServing(
                        api=address_of(sockets[0]), admin=address_of(admin_socket)
                    )
                    log.info(
                        "serving", api=serving.api, admin=serving.admin, workers=settings.workers
                    )
                    task_status.started(serving)
                    await self._stopping.wait()
                    workers.stop()
                    admin.stop()
                await wait_reported(relay.ledger, client, self._clock)
                base.cancel_scope.cancel()
        log.info("stopped")
