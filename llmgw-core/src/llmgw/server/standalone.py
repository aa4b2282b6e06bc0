"""A router alone: its table, keys and usage go over the feed of one or more servers."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.config.addresses import Address
from llmgw.config.loading import Loaded
from llmgw.config.server import ServerSettings
from llmgw.contracts.balancing import BalancerFactory
from llmgw.contracts.engine import EngineAdapter
from llmgw.domain.secret import Secret
from llmgw.logs import get_logger
from llmgw.router.app import Router
from llmgw.router.feed import FeedClient, LastTable
from llmgw.router.feed.client import feed_client
from llmgw.router.front import Connection, Front
from llmgw.router.usage import UsageLedger
from llmgw.server.listeners import address_of, bound
from llmgw.server.router_admin import feed_page, router_admin
from llmgw.server.serving import HttpListener
from llmgw.server.statedir import admin_token, prepare
from llmgw.server.tls import certificate_of, servers_trust

log = get_logger(__name__)

#: A router may be one of several: its streams are given longer to end than a server's own.
DRAIN_LIMIT_S = 300.0
_ADMIN_DRAIN_S = 1.0
_NOTICE_S = 5.0
_FIRST_TABLE_S = 3.0
_LAST_REPORT_S = 3.0
TABLE_FILE = "table.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterServing:
    """Where a stand-alone router answers."""

    api: Address
    admin: Address


class StandaloneRouter:
    """One router process. `run` serves until `stop`."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        servers: Sequence[str],
        token: Secret,
        balancers: Mapping[str, BalancerFactory],
        engines: Mapping[str, EngineAdapter],
        clock: Clock,
        own_token: Secret | None = None,
        sockets: Mapping[str, socket.socket] | None = None,
    ) -> None:
        """servers: URLs of admin listeners. token: opens the feed there.

        own_token: opens this router's metrics; None: that of its state folder. sockets: `listen`
        and `admin_listen`, already listening; None: bound as the settings say.
        """
        self._loaded = loaded
        self._servers = servers
        self._token = token
        self._balancers = balancers
        self._engines = engines
        self._clock = clock
        self._own_token = own_token
        self._sockets = sockets
        self._stopping = anyio.Event()

    async def _metrics(self, router: Router, feed: FeedClient) -> bytes:
        page = await router.metrics_page()
        # A worker's feed is its parent, which says of its own whether it is stale.
        return page if self._own_token is not None else page + feed_page(feed.is_stale)

    def stop(self) -> None:
        """No longer ready, then no new connection, then the end when the streams have ended."""
        self._stopping.set()

    def reload(self) -> None:
        """Nothing: what a router serves comes from its servers."""

    async def run(self, *, task_status: TaskStatus[RouterServing]) -> None:
        """Serve. Raises ConfigError if an address or the state folder cannot be used."""
        settings = self._loaded.settings
        warn_of_exposure(settings)
        await anyio.to_thread.run_sync(prepare, self._loaded.state_dir)
        own_token = self._own_token or admin_token(
            self._loaded.state_dir, settings.auth.admin_token_file
        )
        router = Router(
            settings.router,
            balancers=self._balancers,
            adapters=self._engines,
            clock=self._clock,
            state_dir=self._loaded.state_dir,
            keys_open=keys_are_open(settings),
        )
        certificate = certificate_of(settings.tls)
        feed = FeedClient(
            self._servers,
            self._token,
            router,
            self._clock,
            last_table=LastTable(self._loaded.state_dir / TABLE_FILE),
            connect=partial(feed_client, trust=servers_trust(settings.tls)),
        )
        router.nudges = feed
        with ExitStack() as stack:
            sockets = self._sockets or stack.enter_context(
                bound({"listen": settings.listen, "admin_listen": settings.admin_listen})
            )
            api = address_of(sockets["listen"])
            limit_s = drain_limit_s(self._loaded)
            api_listener = HttpListener(
                router.asgi,
                sockets["listen"],
                protocol=router.protocol,
                tls=certificate,
                handshake_s=router.front.limits.head_s,
                drain_limit_s=limit_s,
            )
            admin_listener = HttpListener(
                router_admin(
                    is_ready=lambda: router.is_ready,
                    is_stale=lambda: feed.is_stale,
                    metrics_page=partial(self._metrics, router, feed),
                    token=own_token,
                ),
                sockets["admin_listen"],
                protocol=partial(
                    Connection,
                    Front(limits=router.front.limits, wheel=router.wheel, metrics=router.metrics),
                ),
                tls=certificate,
                handshake_s=router.front.limits.head_s,
                drain_limit_s=_ADMIN_DRAIN_S,
            )
            async with anyio.create_task_group() as base:
                await base.start(router.run)
                await base.start(feed.run)
                if certificate is not None:
                    base.start_soon(certificate.follow, self._clock)
                await self._wait_first_table(router, feed)
                async with anyio.create_task_group() as listeners:
                    await listeners.start(admin_listener.run)
                    await listeners.start(api_listener.run)
                    serving = RouterServing(api=api, admin=address_of(sockets["admin_listen"]))
                    log.info("serving", api=api, admin=serving.admin, servers=len(self._servers))
                    task_status.started(serving)
                    await self._stopping.wait()
                    listeners.start_soon(router.drain, limit_s)
                    if not api.is_loopback:
                        await self._clock.sleep(_NOTICE_S)
                    api_listener.stop()
                    admin_listener.stop()
                await wait_reported(router.ledger, feed, self._clock)
                base.cancel_scope.cancel()
        log.info("stopped")

    async def _wait_first_table(self, router: Router, feed: FeedClient) -> None:
        """Let a server or the disk say what is served, else every model would be unknown at first;
        and where a server answers, what part of the limits is ours.

        Not for ever: with no server and nothing on disk we listen, and say that we are not ready.
        """
        until = self._clock.monotonic() + _FIRST_TABLE_S
        while self._clock.monotonic() < until and (
            not router.table.routes if feed.is_stale else not feed.has_shares
        ):
            await self._clock.sleep(0.02)


async def wait_reported(ledger: UsageLedger, feed: FeedClient, clock: Clock) -> None:
    """Let a server take what the last requests have used; not for long, it may be away."""
    until = clock.monotonic() + _LAST_REPORT_S
    while len(ledger) and not feed.is_stale and clock.monotonic() < until:
        await clock.sleep(0.05)


def keys_are_open(settings: ServerSettings) -> bool:
    """Return whether the API answers without a key."""
    if settings.auth.api_keys != "auto":
        return settings.auth.api_keys == "off"
    return Address.parse(settings.listen).is_loopback or settings.auth.insecure_bind


def warn_of_exposure(settings: ServerSettings) -> None:
    """Say at each start what `insecure_bind` has opened; loud, since it is easily forgotten."""
    if not settings.auth.insecure_bind:
        return
    for name in ("listen", "admin_listen"):
        address = Address.parse(getattr(settings, name))
        if not address.is_loopback and settings.tls.certificate is None:
            log.warning(
                "listening beyond this machine without TLS",
                setting=name,
                address=address,
                keys="not asked for"
                if name == "listen" and keys_are_open(settings)
                else "asked for",
            )


def drain_limit_s(loaded: Loaded) -> float:
    """Return how long a router's streams may go on: as the operator says, else long."""
    return loaded.settings.drain_limit if "drain_limit" in loaded.origins else DRAIN_LIMIT_S
