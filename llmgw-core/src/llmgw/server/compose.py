"""The parts of one server, made and joined; nothing runs yet.

This file and `app.py`, which runs what is made here, are all that knows both the router and
the control plane.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TypeVar

from llmgw.clock import Clock
from llmgw.config.addresses import Address
from llmgw.config.loading import Loaded
from llmgw.config.server import ServerSettings
from llmgw.contracts.dispatch import Dispatcher, DispatcherContext
from llmgw.contracts.leases import LeaseStore, named_holder
from llmgw.contracts.sinks import UsageSource
from llmgw.control.plane import ControlPlane
from llmgw.domain.catalog import Model
from llmgw.domain.keys import ApiKey, KeySpend
from llmgw.domain.secret import Secret
from llmgw.domain.usage import UsageBatch
from llmgw.errors import ConfigError, Problem
from llmgw.logs import get_logger
from llmgw.plugins import Registry, Supplied
from llmgw.router.app import Router
from llmgw.router.feed import FeedClient, FeedSource, LastTable
from llmgw.router.feed.client import feed_client
from llmgw.server.deposits import Deposits, ModelsByFile
from llmgw.server.feeding import LAST_TABLE_FILE, Feeding, UsageOfAll
from llmgw.server.forwarding import Forwarding, NudgeAll
from llmgw.server.listeners import check_free
from llmgw.server.standalone import keys_are_open
from llmgw.server.statedir import admin_token
from llmgw.server.static import EndpointsOfBoth, static_endpoints
from llmgw.server.tls import servers_trust
from llmgw.store import Follower, Listeners, Store, open_store

log = get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The control plane, and what carries its orders."""

    plane: ControlPlane
    dispatcher: Dispatcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The store, with the loops that read from it and write to it."""

    store: Store
    follower: Follower
    deposits: Deposits


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one server is made of."""

    router: Router
    endpoints: EndpointsOfBoth  #: the router's, the configuration's and the fleet's joined
    fleet: Fleet | None  #: None: no control plane runs here
    books: Books | None  #: None: nothing needs a store
    feeding: Feeding  #: tells stand-alone routers the same as the one in this process


def needs_store(loaded: Loaded) -> bool:
    """Return whether anything needs the store: the control plane, keys, or the operator."""
    settings = loaded.settings
    return bool(
        loaded.wants_control is not False or settings.store.url or not keys_are_open(settings)
    )


def store_of(loaded: Loaded, clock: Clock) -> Store:
    """Open the store that the settings name. May take seconds; not on the event loop."""
    secret = loaded.settings.cluster_secret
    return open_store(
        loaded.settings.store.url,
        state_dir=loaded.state_dir,
        clock=clock,
        cluster_secret=Secret(secret.get_secret_value()) if secret else None,
        cluster_secret_file=loaded.settings.cluster_secret_file,
    )


def compose(
    loaded: Loaded,
    registry: Registry,
    clock: Clock,
    *,
    store: Store | None,
    known_nodes: int | None,
    may_empty: bool = False,
) -> Parts:
    """Make all parts.

    known_nodes: how many the store knows; None: no control plane runs. may_empty: as `Deposits`.

    Raises ConfigError for what only shows now: a dispatcher that is not installed, a taken
    address of agents, a key file that cannot be read.
    """
    settings = loaded.settings
    router = Router(
        settings.router,
        balancers=registry.balancers,
        adapters=registry.engines,
        clock=clock,
        state_dir=loaded.state_dir,
        keys_open=keys_are_open(settings),
    )
    feed = FeedSource(
        cluster=store.cluster_id if store else "",
        server=server_name(),
        clock=clock,
        store=partial(_add_usage, store) if store else None,
    )
    static = static_endpoints(settings.endpoints, registry.engines)
    endpoints = EndpointsOfBoth([router, feed], static)
    fleet = peers = None
    if store is not None and known_nodes is not None:
        fleet = _fleet(loaded, registry, clock, router, feed, endpoints, store, known_nodes)
        router.nudges = feed.nudges = fleet.plane
        if settings.control.peers:
            peers = _peers(loaded, feed, UsageOfAll([router, feed]), clock)
            router.nudges = feed.nudges = NudgeAll(feed, fleet.plane, peers)
    books = None
    if store is not None:
        books = _books(loaded, clock, router, feed, fleet, store, may_empty)
    feeding = Feeding(
        feed,
        LastTable(loaded.state_dir / LAST_TABLE_FILE) if fleet else None,
        plane=fleet.plane if fleet else None,
        router=router if settings.workers == 1 else None,
        peers=peers,
        clock=clock,
    )
    return Parts(router=router, endpoints=endpoints, fleet=fleet, books=books, feeding=feeding)


def _peers(loaded: Loaded, feed: FeedSource, usage: UsageSource, clock: Clock) -> FeedClient:
    settings = loaded.settings
    forwarding = Forwarding(feed, usage, clock)
    return FeedClient(
        settings.control.peers,
        admin_token(loaded.state_dir, settings.auth.admin_token_file),
        forwarding,
        clock,
        connect=partial(feed_client, trust=servers_trust(settings.tls)),
        has_in_force=forwarding.has_in_force,
        only_leader=True,
    )


async def _add_usage(store: Store, batch: UsageBatch) -> None:
    await store.run(partial(store.usage.add, batch))


def _fleet(
    loaded: Loaded,
    registry: Registry,
    clock: Clock,
    router: Router,
    feed: FeedSource,
    endpoints: EndpointsOfBoth,
    store: Store,
    known_nodes: int,
) -> Fleet:
    settings = loaded.settings
    check_free("agent_listen", settings.agent_listen)
    context = DispatcherContext(
        agent_listen=settings.agent_listen,
        state_dir=loaded.state_dir,
        trust=store.trust,
        clock=clock,
        node_count_hint=known_nodes,
        sections=settings.plugins,
    )
    dispatcher = _chosen(registry.dispatchers(context), settings.control.dispatcher, "dispatcher")
    plane = ControlPlane(
        settings.control,
        engines=registry.engines,
        policies=registry.policies,
        weight_sources=registry.weight_sources,
        dispatcher=dispatcher,
        lease_store=_lease_store(settings, registry, store),
        holder=_holder(settings),
        endpoint_sinks=[endpoints],
        catalog_sinks=[router, feed],
        published=feed,
        sinks=tuple(registry.sinks(settings.plugins).objects.values()),
        usage=UsageOfAll([router, feed]),
        events=store.events,
        spans=router.forward.tracing,
        agent_version=".".join(metadata.version("llmgw-core").split(".")[:2]),
        clock=clock,
    )
    return Fleet(plane=plane, dispatcher=dispatcher)


def _lease_store(settings: ServerSettings, registry: Registry, store: Store) -> LeaseStore:
    name = settings.control.lease_store
    if name == store.leases.name:
        return store.leases
    return _chosen(registry.lease_stores(settings.plugins), name, "lease_store")


def _books(
    loaded: Loaded,
    clock: Clock,
    router: Router,
    feed: FeedSource,
    fleet: Fleet | None,
    store: Store,
    may_empty: bool,
) -> Books:
    def keys_changed(keys: tuple[ApiKey, ...], spend: tuple[KeySpend, ...]) -> None:
        router.keys.replace(keys, spend)
        feed.publish_keys(keys)
        feed.publish_spend(spend)

    listeners = Listeners(keys=keys_changed)
    if fleet is not None:
        listeners = Listeners(
            keys=keys_changed,
            catalog=partial(put_in_force, fleet.plane),
            nodes=fleet.plane.know_nodes,
            node_forgotten=fleet.plane.forget_node,
        )
    follower = Follower(store, listeners, clock)
    deposits = Deposits(
        store,
        ledger=router.ledger,
        fleet=fleet.plane.view if fleet else None,
        files=models_by_file(loaded),
        imported=follower.refresh,
        clock=clock,
        may_empty=may_empty,
    )
    return Books(store=store, follower=follower, deposits=deposits)


def put_in_force(plane: ControlPlane, models: Sequence[Model]) -> None:
    """Give the control plane the stored catalog, without what this server can no longer run.

    An engine's package may have been removed since an entry was accepted; that must not take
    every other model away.
    """
    problems = plane.check_catalog(models)
    bad = {int(found[1]) for one in problems if (found := _INDEX.match(one.path))}
    if problems:
        reason = "; ".join(str(problem) for problem in problems)
        names = ", ".join(models[at].name for at in sorted(bad))
        log.error("models left out of the catalog", models=names, reason=reason)
    plane.set_catalog([model for at, model in enumerate(models) if at not in bad])


_INDEX = re.compile(r"models\[(\d+)\]")


def models_by_file(loaded: Loaded) -> ModelsByFile:
    """Return the configured models by the name of the file that owns them."""
    files: dict[str, list[Model]] = {}
    for model in loaded.settings.models:
        owner = loaded.owners[model.name].rpartition("/")[2]
        files.setdefault(owner, []).append(model)
    return files


def server_name() -> str:
    """Return what this process calls itself, to operators and as a candidate to lead."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _holder(settings: ServerSettings) -> str:
    """Return how other servers name this one to operators while it leads: with where to go."""
    admin = Address.parse(settings.admin_listen)
    if not admin.port:
        return server_name()  # the system chooses it, which is for tests
    host = socket.gethostname() if admin.host in ("0.0.0.0", "::") else admin.host
    scheme = "https" if settings.tls.certificate else "http"
    return named_holder(server_name(), f"{scheme}://{Address(host, admin.port)}")


def _chosen(supplied: Supplied[T], name: str, setting: str) -> T:
    """Return the object that `control.<setting>` names, or say what is missing."""
    if name in supplied.objects:
        return supplied.objects[name]
    failed = [f"{one.distribution} failed: {one.reason}" for one in supplied.failures]
    known = ", ".join(supplied.objects) or "none"
    way_out = "pip install llmgw-agent" if name == "grpc" else f"installed: {known}"
    message = f"{name!r} is not there; " + "; ".join([*failed, way_out])
    raise ConfigError("settings", [Problem(path=f"control.{setting}", message=message)])
