"""One agent, put together. The only file that knows all the node's parts."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
from anyio.abc import TaskStatus

from llmgw.clock import Clock, SystemClock
from llmgw.config.places import default_state_dir
from llmgw.contracts.engine import EngineAdapter
from llmgw.contracts.hardware import HardwareProbe
from llmgw.contracts.weights import WeightSource
from llmgw.domain.ids import NodeId, ShardId
from llmgw.domain.secret import Secret
from llmgw.logs import configure, get_logger
from llmgw.plugins import installed_plugins, load_registry
from llmgw.systemd import Supervision, can_start_thread
from llmgw_agent.node import processes
from llmgw_agent.node.assignments import Assignments, Intent
from llmgw_agent.node.cgroups import delegated_cgroup
from llmgw_agent.node.commands import CommandHandler
from llmgw_agent.node.durable import DiskFull
from llmgw_agent.node.engines import NodeHomes
from llmgw_agent.node.hardware.watch import DeviceWatch
from llmgw_agent.node.host import Host
from llmgw_agent.node.identity import KeptIdentity, PeerTls
from llmgw_agent.node.installs import EngineInstaller
from llmgw_agent.node.inventory import Inventory
from llmgw_agent.node.link import Abilities
from llmgw_agent.node.logs import AgentLog, LogBook
from llmgw_agent.node.outbox import Allegiance, Outbox
from llmgw_agent.node.statefolder import StateFolder, host_lock_folder
from llmgw_agent.node.status import ServerLink, StatusFile
from llmgw_agent.node.supervisor import Supervisor
from llmgw_agent.node.uplink import Uplink, open_uplink, speaks_tls
from llmgw_agent.node.weights.admissions import Admissions
from llmgw_agent.node.weights.cache import WeightCache
from llmgw_agent.node.weights.peers import PeerWeights
from llmgw_agent.node.weights.room import Room
from llmgw_agent.node.weights.sharing import Sharing
from llmgw_agent.settings import AgentSettings
from llmgw_agent.wire.frames import WeightsOffer

log = get_logger(__name__)

_STOP_LIMIT_S = 120.0  # for all engines together; a second signal is quicker
_STOP_LOOK_S = 0.1
_CORE = "llmgw-core"


class Plugins(Protocol):
    """The part of a registry that an agent uses."""

    @property
    def engines(self) -> Mapping[str, EngineAdapter]: ...

    @property
    def weight_sources(self) -> Mapping[str, WeightSource]: ...

    @property
    def probes(self) -> Mapping[str, HardwareProbe]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What runs, and what is asked of it from outside."""

    supervisor: Supervisor
    inventory: Inventory
    status: StatusFile
    assignments: Assignments
    outbox: Outbox
    commands: CommandHandler
    logs: LogBook
    weights: WeightCache
    sharing: Sharing | None
    uplink: Uplink | None


async def serve(
    settings: AgentSettings,
    *,
    state_dir: Path,
    registry: Plugins,
    clock: Clock,
    stop: anyio.Event | None = None,
    task_status: TaskStatus[Parts] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set or until cancelled; engines run on unless settings say otherwise.

    Started once what runs has been adopted and servers are being dialled. Raises ConfigError if
    the state folder cannot be used or another agent uses it.
    """
    folder = StateFolder(state_dir)
    agent_log = AgentLog()
    logging.getLogger().addHandler(agent_log)
    try:
        parts = _compose(settings, folder=folder, registry=registry, clock=clock, log=agent_log)
        async with anyio.create_task_group() as group:
            await group.start(parts.weights.run)
            if parts.sharing is not None:
                await group.start(parts.sharing.run)
            await group.start(parts.inventory.run)
            await group.start(parts.supervisor.run)
            await group.start(parts.status.run)
            if parts.uplink is not None:
                await group.start(parts.uplink.run)
            log.info("agent runs", node=settings.node_id, state_dir=str(state_dir))
            task_status.started(parts)
            await (stop or anyio.Event()).wait()
            if settings.stop_engines:
                await _stop_engines(parts, clock)
            elif parts.assignments.all():
                log.info("agent stops, engines run on", engines=len(parts.assignments.all()))
            group.cancel_scope.cancel()
    finally:
        logging.getLogger().removeHandler(agent_log)
        folder.close()


def _compose(
    settings: AgentSettings, *, folder: StateFolder, registry: Plugins, clock: Clock, log: AgentLog
) -> Parts:
    uid = folder.uid()
    node = NodeId(settings.node_id)
    assignments = Assignments(folder.assigned)
    watch = DeviceWatch(registry.probes, our_pids=lambda: supervisor.pids())
    kept = KeptIdentity(folder.identity)
    if settings.rejoin:
        kept.forget()
    weights = _weights(
        settings, folder, registry, assignments, kept, find=lambda ref: _find(uplink, ref)
    )
    sharing = _sharing(settings, weights, kept, clock)
    installer = EngineInstaller(
        folder.engines,
        adapters=registry.engines,
        used=lambda: frozenset(
            (item.spec.engine, item.spec.engine_version) for item in assignments.all().values()
        ),
        locks=settings.engine_locks,
    )
    homes = NodeHomes(folder=folder.engines, adapters=registry.engines, installer=installer)
    inventory = Inventory(
        settings=settings,
        uid=uid,
        version=importlib.metadata.version("llmgw-agent"),
        devices=watch,
        engines=homes.installed,
        installable=installer.installable,
        weights=weights.cached,
        disk_free_mib=weights.free_mib,
        weights_port=lambda: None if sharing is None else sharing.port,
        clock=clock,
    )
    outbox = Outbox(
        inventory=inventory,
        allegiance=lambda: Allegiance(epoch=assignments.epoch, cluster_id=assignments.cluster_id),
    )
    logs = LogBook(agent=log, clock=clock)
    supervisor = Supervisor(
        host=Host(
            node=node,
            agent_uid=uid,
            boot_id=processes.boot_id(),
            address=settings.data_address,
            guarded=settings.guards_engines,
            clock=clock,
            adapters=registry.engines,
            homes=homes,
            weights=weights,
            devices=watch.read,
            lock_folder=host_lock_folder(settings.lock_folder),
            environment=dict(os.environ),
            cgroups=delegated_cgroup(),
        ),
        assignments=assignments,
        shards=folder.shards,
        voice=outbox,
        logs=logs,
    )
    commands = CommandHandler(
        node=node,
        assignments=assignments,
        adapters=registry.engines,
        devices=lambda: watch.devices,
        weights_problem=weights.problem,
        address=settings.data_address,
        guarded=settings.guards_engines,
    )
    uplink = open_uplink(
        settings,
        kept=kept,
        outbox=outbox,
        commands=commands,
        assignments=assignments,
        abilities=Abilities(logs=logs, weights=weights, engines=installer, sharing=sharing),
        clock=clock,
    )
    status = StatusFile(
        folder.status,
        outbox=outbox,
        inventory=inventory,
        allegiance=lambda: (assignments.epoch, assignments.cluster_id),
        servers=uplink.status if uplink is not None else tuple[ServerLink, ...],
        clock=clock,
    )
    return Parts(
        supervisor=supervisor,
        inventory=inventory,
        status=status,
        assignments=assignments,
        outbox=outbox,
        commands=commands,
        logs=logs,
        weights=weights,
        sharing=sharing,
        uplink=uplink,
    )


async def _find(uplink: Uplink | None, ref: str) -> WeightsOffer | None:
    return None if uplink is None else await uplink.link.find_weights(ref)


def _sharing(
    settings: AgentSettings, weights: WeightCache, kept: KeptIdentity, clock: Clock
) -> Sharing | None:
    own = settings.weights
    if not (own.share and speaks_tls(settings)):
        return None
    return Sharing(
        tls=PeerTls(kept),
        admissions=Admissions(clock),
        find=weights.shared,
        address=settings.data_address,
        port=own.share_port,
        connections=own.share_connections,
        bytes_per_s=own.share_mib_s * (1 << 20),
    )


def _weights(
    settings: AgentSettings,
    folder: StateFolder,
    registry: Plugins,
    assignments: Assignments,
    kept: KeptIdentity,
    *,
    find: Callable[[str], Coroutine[Any, Any, WeightsOffer | None]],
) -> WeightCache:
    own = settings.weights
    path = own.folder or folder.weights

    def users() -> dict[ShardId, frozenset[str]]:
        return {shard: item.spec.refs for shard, item in assignments.all().items()}

    token = own.hub_token
    return WeightCache(
        path,
        sources=registry.weight_sources,
        roots=settings.weights_roots,
        networks=own.networks,
        users=users,
        room=Room(
            path,
            reserve_bytes=int(own.reserve_gib * (1 << 30)),
            budget_bytes=None if own.budget_gib is None else int(own.budget_gib * (1 << 30)),
        ),
        secrets={} if token is None else {"hf": Secret(token.get_secret_value())},
        agent=folder.uid(),
        peers=(
            PeerWeights(find=find, tls=PeerTls(kept), trusts_fleet=own.peers == "fleet")
            if own.peers != "off" and speaks_tls(settings)
            else None
        ),
    )


async def _stop_engines(parts: Parts, clock: Clock) -> None:
    """Order every shard to stop, as a server would, and wait until nothing is left."""
    parts.inventory.leave()
    parts.commands.leave()
    async with parts.assignments.turn:
        for assigned in tuple(parts.assignments.all().values()):
            try:
                await parts.assignments.put(replace(assigned, intent=Intent.STOP))
            except DiskFull as error:
                log.error("engine cannot be stopped", shard=assigned.spec.id, reason=str(error))
    with anyio.move_on_after(_STOP_LIMIT_S) as limit:
        while not parts.supervisor.is_idle():
            await clock.sleep(_STOP_LOOK_S)
    if limit.cancelled_caught:
        log.error("engines are left running", shards=",".join(parts.assignments.all()))


def run_agent(settings: AgentSettings) -> None:
    """Run an agent in the foreground: the first SIGTERM or SIGINT stops it, the second at once.

    Raises ConfigError as `serve` does.
    """
    configure(level=settings.log.level, as_json=settings.log.format == "json")
    anyio.run(_run_until_signalled, settings)


async def _run_until_signalled(settings: AgentSettings) -> None:
    supervision, clock = Supervision(os.environ), SystemClock()
    async with stop_on_signals() as stop, anyio.create_task_group() as signs:
        async with anyio.create_task_group() as running:
            await running.start(
                partial(
                    serve,
                    settings,
                    state_dir=state_dir_of(settings),
                    # The core's own policies, balancers and sinks are nothing to a node.
                    registry=load_registry(
                        plugin for plugin in installed_plugins() if plugin.distribution != _CORE
                    ),
                    clock=clock,
                    stop=stop,
                )
            )
            # Without threads gRPC may hold a channel for ever, whose loop goes round meanwhile.
            signs.start_soon(partial(supervision.keep_alive, clock, is_well=can_start_thread))
        signs.cancel_scope.cancel()


@asynccontextmanager
async def stop_on_signals() -> AsyncIterator[anyio.Event]:
    """Yield an event that the first SIGTERM or SIGINT sets; the second cancels the block."""
    stop = anyio.Event()

    async def listen(*, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                if stop.is_set():
                    group.cancel_scope.cancel()
                stop.set()

    async with anyio.create_task_group() as group:
        await group.start(listen)
        yield stop
        group.cancel_scope.cancel()


def state_dir_of(settings: AgentSettings) -> Path:
    """Return the agent's state folder, the platform's if none was given."""
    return settings.state_dir or default_state_dir(os.environ) / "agent"
