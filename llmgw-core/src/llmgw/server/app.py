"""A whole server: started in order of dependency, stopped in the reverse.

bind ─▶ store ─▶ router ─▶ control plane with its dispatcher ─▶ admin listener ─▶ API listener
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import TaskStatus

from llmgw.admin.app import build_admin
from llmgw.admin.parts import AdminParts
from llmgw.admin.pulse import Pulse
from llmgw.clock import Clock
from llmgw.config.addresses import Address
from llmgw.config.loading import NOTHING_TO_DO, Loaded
from llmgw.domain.secret import Secret
from llmgw.errors import ConfigError, Problem
from llmgw.logs import get_logger
from llmgw.plugins import Registry
from llmgw.router.front import Connection, Front
from llmgw.router.metrics import Totals
from llmgw.server.compose import (
    Parts,
    compose,
    models_by_file,
    needs_store,
    server_name,
    store_of,
)
from llmgw.server.feeding import UsageOfAll
from llmgw.server.figures import FigureKeeper
from llmgw.server.fleetpage import fleet_page
from llmgw.server.listeners import address_of, bound, shared
from llmgw.server.pages import own_page, totals_of
from llmgw.server.reload import Reloads
from llmgw.server.sampling import Sampler
from llmgw.server.serving import HttpListener
from llmgw.server.standalone import warn_of_exposure
from llmgw.server.statedir import admin_token, prepare
from llmgw.server.static import static_endpoints
from llmgw.server.tls import Certificate, certificate_of
from llmgw.server.web import Application, with_admin
from llmgw.server.workers import Workers, worker_flags
from llmgw.store import Store

log = get_logger(__name__)

#: Off loopback a balancer needs this long to see that we are not ready any more.
_NOTICE_S = 5.0
#: Log tails and pages end at once; what an operator has just sent may still be answered.
_ADMIN_DRAIN_S = 1.0
_SAMPLE_S = 2.0
# Their pages are fetched and read, which takes a tenth of a second on a large fleet.
_SAMPLE_WORKERS_S = 10.0
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Where a server answers."""

    api: Address
    admin: Address
    agents: str | None  #: None: no control plane


@dataclass(frozen=True, slots=True)
class _Sockets:
    """What is listened on."""

    api: tuple[socket.socket, ...]  #: one for each worker
    admin: socket.socket


class Server:
    """One server. `run` serves until `stop`; all methods belong to the event loop's thread."""

    def __init__(
        self,
        loaded: Loaded,
        registry: Registry,
        *,
        clock: Clock,
        load: Callable[[], Loaded] | None = None,
        may_empty: bool = False,
        log_lines: Sequence[str] = (),
    ) -> None:
        """load: reads the configuration again; None: it never changes. may_empty: as `Reloads`.

        log_lines: this process's newest log lines, for operators; it may grow and shrink.
        """
        self._loaded = loaded
        self._registry = registry
        self._clock = clock
        self._load = load
        self._may_empty = may_empty
        self._log_lines = log_lines
        self._stopping = anyio.Event()
        self._reloads: Reloads | None = None

    def stop(self) -> None:
        """End in order: no longer ready, agents, admin, then the API when its streams ended."""
        self._stopping.set()

    def reload(self) -> None:
        """Read the files again now."""
        if self._reloads is not None:
            self._reloads.ask()

    async def run(self, *, task_status: TaskStatus[Serving]) -> None:
        """Serve. Raises ConfigError before anything was started, if it cannot be."""
        warn_of_exposure(self._loaded.settings)
        await anyio.to_thread.run_sync(prepare, self._loaded.state_dir)
        certificate = certificate_of(self._loaded.settings.tls)
        with ExitStack() as stack:
            sockets = self._bind(stack)
            store = None
            if needs_store(self._loaded):
                store = await anyio.to_thread.run_sync(store_of, self._loaded, self._clock)
                stack.callback(store.close)
            parts = compose(
                self._loaded,
                self._registry,
                self._clock,
                store=store,
                known_nodes=await self._known_nodes(store),
                may_empty=self._may_empty,
            )
            await self._serve(parts, sockets, certificate, task_status)

    def _bind(self, stack: ExitStack) -> _Sockets:
        settings = self._loaded.settings
        addresses = {"listen": settings.listen, "admin_listen": settings.admin_listen}
        if settings.workers == 1:
            both = stack.enter_context(bound(addresses))
            return _Sockets(api=(both["listen"],), admin=both["admin_listen"])
        del addresses["listen"]
        admin = stack.enter_context(bound(addresses))["admin_listen"]
        api = stack.enter_context(shared(settings.listen, settings.workers))
        return _Sockets(api=tuple(api), admin=admin)

    async def _known_nodes(self, store: Store | None) -> int | None:
        """Decide whether a control plane runs: return how many nodes it should expect, else None."""
        wants = self._loaded.wants_control
        if wants is None and store is not None:
            wants = bool(await store.run(store.catalog.entries))
            if not wants and not self._loaded.settings.endpoints:
                raise ConfigError("settings", [NOTHING_TO_DO])
        if not wants or store is None:
            return None
        return len(await store.run(store.nodes.list))

    async def _serve(
        self,
        parts: Parts,
        sockets: _Sockets,
        certificate: Certificate | None,
        task_status: TaskStatus[Serving],
    ) -> None:
        settings, router = self._loaded.settings, parts.router
        token = admin_token(self._loaded.state_dir, settings.auth.admin_token_file)
        api = address_of(sockets.api[0])
        workers = self._workers(sockets.api, parts, token) if settings.workers > 1 else None
        scheme = "http" if certificate is None else "https"
        sampler = self._sampler(parts, workers)
        admin = self._admin(parts, token, workers, sampler.pulse, api_url=f"{scheme}://{api}")
        admin_listener = HttpListener(
            admin,
            sockets.admin,
            # The API's own front and limits, without its hot routes.
            protocol=partial(
                Connection,
                Front(limits=router.front.limits, wheel=router.wheel, metrics=router.metrics),
            ),
            tls=certificate,
            handshake_s=router.front.limits.head_s,
            drain_limit_s=_ADMIN_DRAIN_S,
        )
        api_listener = workers or HttpListener(
            with_admin(router.asgi, admin if self._admin_on_api else None),
            sockets.api[0],
            protocol=router.protocol,
            tls=certificate,
            handshake_s=router.front.limits.head_s,
            drain_limit_s=settings.drain_limit,
        )
        async with anyio.create_task_group() as base:
            await base.start(router.run)
            await parts.feeding.restore(parts.endpoints, router)
            await base.start(parts.feeding.run)
            base.start_soon(sampler.run)
            if certificate is not None:
                base.start_soon(certificate.follow, self._clock)
            if parts.books is not None:
                await base.start(parts.books.store.keep_fresh)
            async with anyio.create_task_group() as listeners:
                async with anyio.create_task_group() as control:
                    agents = None
                    if parts.fleet is not None:
                        agents = await control.start(parts.fleet.plane.run)
                    if parts.books is not None:
                        # The catalog of files goes in first; keys are known before requests come.
                        await base.start(parts.books.deposits.run)
                        await base.start(parts.books.follower.run)
                    if parts.books is not None and parts.fleet is not None:
                        keeper = FigureKeeper(parts.books.store, parts.fleet.plane, self._clock)
                        await control.start(keeper.run)
                    await listeners.start(admin_listener.run)
                    await listeners.start(api_listener.run)
                    if self._load is not None:
                        await control.start(self._watch_files(parts, self._load).run)
                    serving = Serving(api=api, admin=address_of(sockets.admin), agents=agents)
                    log.info("serving", api=api, admin=serving.admin, agents=agents or "none")
                    task_status.started(serving)
                    await self._stopping.wait()
                    listeners.start_soon(router.drain, settings.drain_limit)
                    control.cancel_scope.cancel()
                admin_listener.stop()
                if not api.is_loopback and workers is None:
                    await self._clock.sleep(_NOTICE_S)
                api_listener.stop()
            if parts.books is not None:
                await parts.books.deposits.write()  # what the last requests have used
            base.cancel_scope.cancel()
        log.info("stopped")

    def _workers(self, sockets: Sequence[socket.socket], parts: Parts, token: Secret) -> Workers:
        settings = self._loaded.settings
        return Workers(
            sockets,
            feed=parts.feeding.feed,
            token=token,
            flags=worker_flags(settings, address_of(sockets[0]), settings.drain_limit),
            state_dir=self._loaded.state_dir / "workers",
            drain_limit_s=settings.drain_limit,
            clock=self._clock,
        )

    def _sampler(self, parts: Parts, workers: Workers | None) -> Sampler:
        async def totals() -> Totals:
            if workers is None:
                return parts.router.metrics.totals()
            return await anyio.to_thread.run_sync(totals_of, await workers.metrics(b""))

        return Sampler(
            Pulse(),
            totals=totals,
            usage=UsageOfAll([parts.router, parts.feeding.feed]),
            view=parts.fleet.plane.view if parts.fleet else None,
            interval_s=_SAMPLE_S if workers is None else _SAMPLE_WORKERS_S,
            clock=self._clock,
        )

    def _admin(
        self, parts: Parts, token: Secret, workers: Workers | None, pulse: Pulse, *, api_url: str
    ) -> Application:
        settings, fleet, books = self._loaded.settings, parts.fleet, parts.books
        is_loopback = Address.parse(settings.admin_listen).is_loopback
        return build_admin(
            AdminParts(
                token=token,
                clock=self._clock,
                server=server_name(),
                store=books.store if books else None,
                view=fleet.plane.view if fleet else None,
                router=parts.router,
                dispatcher=fleet.dispatcher if fleet else None,
                feed=parts.feeding.feed,
                check_catalog=fleet.plane.check_catalog if fleet else lambda _: (),
                retry=fleet.plane.retry if fleet else lambda _: (),
                follow=books.follower.refresh if books else anyio.lowlevel.checkpoint,
                metrics=partial(self._metrics, parts, workers),
                oidc=settings.auth.oidc,
                pulse=pulse,
                api_url=api_url,
                server_log=self._log_lines,
                problems=partial(self._problems, parts),
                allowed_hosts=_LOOPBACK_HOSTS if is_loopback else ("*",),
            )
        )

    @property
    def _admin_on_api(self) -> bool:
        said = self._loaded.settings.auth.admin_on_api
        return Address.parse(self._loaded.settings.listen).is_loopback if said is None else said

    def _problems(self, parts: Parts) -> tuple[str, ...]:
        """Return what keeps the newest files from being in force, () if they are."""
        said = []
        if self._reloads is not None and self._reloads.failed:
            said.append("the configuration files have mistakes: the last good ones are in force")
        if parts.books is not None and (reason := parts.books.deposits.refused) is not None:
            said.append(f"the models of the files are not in force: {reason}")
        return tuple(said)

    async def _metrics(self, parts: Parts, workers: Workers | None) -> bytes:
        page = await parts.router.metrics_page()
        page += own_page(reload_failed=bool(self._problems(parts)))
        if parts.fleet is not None:
            page += await fleet_page(parts.fleet.plane.view)
        return page if workers is None else await workers.metrics(page)

    # -- the configuration's files ---------------------------------------------------------

    def _watch_files(self, parts: Parts, load: Callable[[], Loaded]) -> Reloads:
        self._reloads = Reloads(
            self._loaded,
            load=load,
            apply=partial(self._apply, parts),
            clock=self._clock,
            may_empty=self._may_empty,
        )
        return self._reloads

    def _apply(self, parts: Parts, loaded: Loaded) -> None:
        """Put a new catalog in force, wholly or not at all."""
        static = static_endpoints(loaded.settings.endpoints, self._registry.engines)
        models = loaded.settings.models
        if parts.fleet is not None:
            if problems := parts.fleet.plane.check_catalog(models):
                raise ConfigError("catalog", problems)
        elif any(model.profiles for model in models):
            message = "a profile needs the control plane, which starts with the server: restart it"
            raise ConfigError("catalog", [Problem(path="models", message=message)])
        parts.endpoints.set_static(static)
        if parts.books is not None:
            parts.books.deposits.set_files(models_by_file(loaded))
