"""A whole server, composed, started in order of dependency and stopped in the reverse.

    bind ─▶ store ─▶ router ─▶ control plane with its dispatcher ─▶ admin listener ─▶ API listener

The only file that knows both the router and the control plane.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import TaskStatus

from llmgw.admin.app import build_admin
from llmgw.admin.parts import AdminParts
from llmgw.clock import Clock
from llmgw.config.addresses import Address
from llmgw.config.loading import NOTHING_TO_DO, Loaded
from llmgw.contracts.dispatch import Dispatcher, DispatcherContext
from llmgw.contracts.leases import LeaseStore
from llmgw.control.plane import ControlPlane
from llmgw.domain.catalog import Model
from llmgw.domain.secret import Secret
from llmgw.errors import ConfigError, Problem
from llmgw.logs import get_logger
from llmgw.plugins import Registry, Supplied
from llmgw.router.app import Router
from llmgw.router.front import Connection, Front
from llmgw.server.deposits import Deposits, ModelsByFile
from llmgw.server.listeners import address_of, bound, check_free
from llmgw.server.reload import Reloads
from llmgw.server.serving import HttpListener
from llmgw.server.statedir import admin_token, prepare
from llmgw.server.static import EndpointsOfBoth, static_endpoints
from llmgw.server.web import Application, with_admin
from llmgw.store import Follower, Listeners, Store, open_store

log = get_logger(__name__)

T = TypeVar("T")

#: Off loopback a balancer needs this long to see that we are not ready any more.
_NOTICE_S = 5.0
#: Log tails and pages end at once; what an operator has just sent may still be answered.
_ADMIN_DRAIN_S = 1.0
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Where a server answers."""

    api: Address
    admin: Address
    agents: str | None  #: None: no control plane


@dataclass(slots=True, kw_only=True)
class _Parts:
    """What one run is made of."""

    router: Router
    endpoints: EndpointsOfBoth
    store: Store | None = None
    dispatcher: Dispatcher | None = None
    plane: ControlPlane | None = None
    follower: Follower | None = None
    deposits: Deposits | None = None
    reloads: Reloads | None = None


class Server:
    """One server. `run` serves until `stop`; both may be called from the event loop only."""

    def __init__(
        self,
        loaded: Loaded,
        registry: Registry,
        *,
        clock: Clock,
        load: Callable[[], Loaded] | None = None,
        may_empty: bool = False,
    ) -> None:
        """load: reads the configuration again; None: it never changes."""
        self._loaded = loaded
        self._registry = registry
        self._clock = clock
        self._load = load
        self._may_empty = may_empty
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
        settings = self._loaded.settings
        await anyio.to_thread.run_sync(prepare, self._loaded.state_dir)
        with bound({"listen": settings.listen, "admin_listen": settings.admin_listen}) as sockets:
            store = await self._open_store()
            try:
                parts = self._compose(store)
                await self._serve(parts, sockets, task_status)
            finally:
                if store is not None:
                    store.close()

    # -- composing -------------------------------------------------------------------------

    async def _open_store(self) -> Store | None:
        """Open the store where anything needs it: the control plane, keys, or the operator."""
        settings = self._loaded.settings
        wants = self._loaded.wants_control
        if wants is False and not settings.store.url and self._keys_open:
            return None
        store = await anyio.to_thread.run_sync(self._open_store_now)
        if wants is None and not settings.endpoints and not await store.run(store.catalog.entries):
            store.close()
            raise ConfigError("settings", [NOTHING_TO_DO])
        return store

    def _open_store_now(self) -> Store:
        settings = self._loaded.settings
        secret = settings.cluster_secret
        return open_store(
            settings.store.url,
            state_dir=self._loaded.state_dir,
            clock=self._clock,
            cluster_secret=Secret(secret.get_secret_value()) if secret else None,
            cluster_secret_file=settings.cluster_secret_file,
        )

    @property
    def _keys_open(self) -> bool:
        settings = self._loaded.settings
        if settings.auth.api_keys != "auto":
            return settings.auth.api_keys == "off"
        return Address.parse(settings.listen).is_loopback or settings.auth.insecure_bind

    def _compose(self, store: Store | None) -> _Parts:
        settings = self._loaded.settings
        router = Router(
            settings.router,
            balancers=self._registry.balancers,
            adapters=self._registry.engines,
            clock=self._clock,
            state_dir=self._loaded.state_dir,
            keys_open=self._keys_open,
        )
        static = static_endpoints(settings.endpoints, self._registry.engines)
        parts = _Parts(router=router, endpoints=EndpointsOfBoth(router, static), store=store)
        if store is not None and self._loaded.wants_control is not False:
            self._compose_control(parts, store)
        if store is not None:
            self._compose_store_loops(parts, store)
        if self._load is not None:
            parts.reloads = self._reloads = Reloads(
                self._loaded,
                load=self._load,
                apply=lambda loaded: self._apply(parts, loaded),
                clock=self._clock,
                may_empty=self._may_empty,
            )
        return parts

    def _compose_control(self, parts: _Parts, store: Store) -> None:
        settings = self._loaded.settings
        check_free("agent_listen", settings.agent_listen)
        context = DispatcherContext(
            agent_listen=settings.agent_listen,
            state_dir=self._loaded.state_dir,
            trust=store.trust,
            clock=self._clock,
            node_count_hint=len(store.nodes.list()),
            sections=settings.plugins,
        )
        parts.dispatcher = _chosen(
            self._registry.dispatchers(context), settings.control.dispatcher, "dispatcher"
        )
        parts.plane = ControlPlane(
            settings.control,
            engines=self._registry.engines,
            policies=self._registry.policies,
            weight_sources=self._registry.weight_sources,
            dispatcher=parts.dispatcher,
            lease_store=self._lease_store(store),
            holder=_server_name(),
            endpoint_sinks=[parts.endpoints],
            catalog_sinks=[parts.router],
            sinks=tuple(self._registry.sinks(settings.plugins).objects.values()),
            usage=parts.router,
            events=store.events,
            agent_version=".".join(metadata.version("llmgw-core").split(".")[:2]),
            clock=self._clock,
        )
        parts.router.nudges = parts.plane

    def _compose_store_loops(self, parts: _Parts, store: Store) -> None:
        plane, keys = parts.plane, parts.router.keys
        listeners = Listeners(keys=keys.replace)
        if plane is not None:
            listeners = Listeners(
                keys=keys.replace,
                catalog=partial(_put_in_force, plane),
                nodes=plane.know_nodes,
                node_forgotten=plane.forget_node,
            )
        parts.follower = Follower(store, listeners, self._clock)
        parts.deposits = Deposits(
            store,
            ledger=parts.router.ledger,
            fleet=plane.view if plane else None,
            files=_models_by_file(self._loaded),
            imported=parts.follower.refresh,
            clock=self._clock,
        )

    def _lease_store(self, store: Store) -> LeaseStore:
        name = self._loaded.settings.control.lease_store
        if name == store.leases.name:
            return store.leases
        supplied = self._registry.lease_stores(self._loaded.settings.plugins)
        return _chosen(supplied, name, "lease_store")

    def _apply(self, parts: _Parts, loaded: Loaded) -> None:
        """Put a new catalog in force, wholly or not at all."""
        static = static_endpoints(loaded.settings.endpoints, self._registry.engines)
        models = loaded.settings.models
        if parts.plane is not None:
            if problems := parts.plane.check_catalog(models):
                raise ConfigError("catalog", problems)
        elif any(model.profiles for model in models):
            message = "a profile needs the control plane, which starts with the server: restart it"
            raise ConfigError("catalog", [Problem(path="models", message=message)])
        parts.endpoints.set_static(static)
        if parts.deposits is not None:
            parts.deposits.set_files(_models_by_file(loaded))

    # -- running ---------------------------------------------------------------------------

    async def _serve(
        self,
        parts: _Parts,
        sockets: dict[str, socket.socket],
        task_status: TaskStatus[Serving],
    ) -> None:
        settings, router = self._loaded.settings, parts.router
        admin = self._admin(parts)
        admin_listener = HttpListener(
            admin,
            sockets["admin_listen"],
            protocol=partial(Connection, admin_front(router)),
            tls=settings.tls,
            drain_limit_s=_ADMIN_DRAIN_S,
        )
        api_address = address_of(sockets["listen"])
        api_listener = HttpListener(
            with_admin(router.asgi, admin if self._admin_on_api else None),
            sockets["listen"],
            protocol=router.protocol,
            tls=settings.tls,
            drain_limit_s=settings.drain_limit,
        )
        agents: str | None = None
        async with anyio.create_task_group() as base:
            await base.start(router.run)
            parts.endpoints.set_static(static_endpoints(settings.endpoints, self._registry.engines))
            if parts.store is not None:
                await base.start(parts.store.keep_fresh)
            async with anyio.create_task_group() as listeners:
                async with anyio.create_task_group() as control:
                    if parts.plane is not None:
                        agents = await control.start(parts.plane.run)
                    if parts.deposits is not None and parts.follower is not None:
                        # In this order, and both before the listeners: files, then keys.
                        await base.start(parts.deposits.run)
                        await base.start(parts.follower.run)
                    await listeners.start(admin_listener.run)
                    await listeners.start(api_listener.run)
                    if parts.reloads is not None:
                        await control.start(parts.reloads.run)
                    serving = Serving(
                        api=api_address, admin=address_of(sockets["admin_listen"]), agents=agents
                    )
                    log.info(
                        "serving",
                        api=serving.api,
                        admin=serving.admin,
                        agents=agents or "-",
                        models=len(router.table.routes),
                    )
                    task_status.started(serving)
                    await self._stopping.wait()
                    listeners.start_soon(router.drain, settings.drain_limit)
                    control.cancel_scope.cancel()
                admin_listener.stop()
                if not api_address.is_loopback:
                    await self._clock.sleep(_NOTICE_S)
                api_listener.stop()
            if parts.deposits is not None:
                await parts.deposits.write()  # what the last requests have used
            base.cancel_scope.cancel()
        log.info("stopped")

    def _admin(self, parts: _Parts) -> Application:
        settings = self._loaded.settings
        address = Address.parse(settings.admin_listen)
        return build_admin(
            AdminParts(
                token=admin_token(self._loaded.state_dir, settings.auth.admin_token_file),
                clock=self._clock,
                server=_server_name(),
                store=parts.store,
                view=parts.plane.view if parts.plane else None,
                router=parts.router,
                dispatcher=parts.dispatcher,
                metrics=parts.router.metrics_page,
                allowed_hosts=_LOOPBACK_HOSTS if address.is_loopback else ("*",),
                check_catalog=parts.plane.check_catalog if parts.plane else lambda _: (),
                follow=parts.follower.refresh if parts.follower else anyio.lowlevel.checkpoint,
            )
        )

    @property
    def _admin_on_api(self) -> bool:
        said = self._loaded.settings.auth.admin_on_api
        return Address.parse(self._loaded.settings.listen).is_loopback if said is None else said


def admin_front(router: Router) -> Front:
    """Return the same front as the API's, limits included, without its hot routes."""
    return Front(limits=router.front.limits, wheel=router.wheel, metrics=router.metrics)


def _server_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _models_by_file(loaded: Loaded) -> ModelsByFile:
    files: dict[str, list[Model]] = {}
    for model in loaded.settings.models:
        owner = loaded.owners[model.name].rpartition("/")[2]
        files.setdefault(owner, []).append(model)
    return files


def _put_in_force(plane: ControlPlane, models: tuple[Model, ...]) -> None:
    """Give the control plane the stored catalog, without what this server can no longer run.

    An engine's package may have been removed since an entry was accepted; that must not take
    every other model away.
    """
    problems = plane.check_catalog(models)
    bad = {int(found[1]) for one in problems if (found := _INDEX.match(one.path))}
    if problems:
        reason = "; ".join(str(problem) for problem in problems)
        log.error("models left out", models=[models[at].name for at in sorted(bad)], reason=reason)
    plane.set_catalog([model for at, model in enumerate(models) if at not in bad])


_INDEX = re.compile(r"models\[(\d+)\]")


def _chosen(supplied: Supplied[T], name: str, setting: str) -> T:
    """Return the object that `control.<setting>` names, or say what is missing."""
    if name in supplied.objects:
        return supplied.objects[name]
    failed = [f"{one.distribution} failed: {one.reason}" for one in supplied.failures]
    known = ", ".join(supplied.objects) or "none"
    way_out = "pip install llmgw-agent" if name == "grpc" else f"installed: {known}"
    message = f"{name!r} is not there; " + "; ".join([*failed, way_out])
    raise ConfigError("settings", [Problem(path=f"control.{setting}", message=message)])
