"""What this node is, for registrations and heartbeats: facts of the start, and present readings."""

from __future__ import annotations

import socket
from collections.abc import Callable

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.domain.ids import NodeId
from llmgw.domain.nodes import (
    CachedWeights,
    InstallableEngine,
    InstalledEngine,
    NodeInventory,
)
from llmgw.logs import get_logger
from llmgw_agent.node import processes
from llmgw_agent.node.hardware import fabric, machine
from llmgw_agent.node.hardware.watch import DeviceWatch
from llmgw_agent.settings import AgentSettings

log = get_logger(__name__)

_READ_EVERY_S = 10.0
CAPABILITIES = frozenset(
    {"start", "stop", "drain", "logs", "weights", "engines", "sleep", "adapters", "roles"}
)
GUARDED = "guarded"  #: only this machine or routers reach the engines


class Inventory:
    """The newest inventory; reading it never waits."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        uid: str,
        version: str,
        devices: DeviceWatch,
        engines: Callable[[], tuple[InstalledEngine, ...]],
        installable: Callable[[], tuple[InstallableEngine, ...]],
        weights: Callable[[], tuple[CachedWeights, ...]],
        disk_free_mib: Callable[[], int | None],
        weights_port: Callable[[], int | None],
        clock: Clock,
    ) -> None:
        """engines, installable, disk_free_mib: may take milliseconds, called on a thread.

        disk_free_mib: for weights. weights: never waits. weights_port: where other nodes get them.
        """
        self._settings = settings
        self._uid = uid
        self._version = version
        self._devices = devices
        self._list_engines = engines
        self._list_installable = installable
        self._weights = weights
        self._look_at_disk = disk_free_mib
        self._weights_port = weights_port
        self._clock = clock
        self._boot_id = processes.boot_id()
        self._machine_id = settings.machine or machine.machine_id()
        self._fabric = {
            **fabric.interface_addresses(),
            **fabric.fabric_labels(),
            **settings.fabric,
        }
        self._engines = engines()
        self._installable = installable()
        self._ram_mib, self._available_mib = machine.memory_mib()
        self._disk_free_mib = disk_free_mib()
        self._leaving = False

    def leave(self) -> None:
        """Say from now on that this agent stops its engines and will end."""
        self._leaving = True

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Read again and again until cancelled; started after the first reading."""
        await self._read()
        task_status.started()
        failed = False
        while True:
            await self._clock.sleep(_READ_EVERY_S)
            try:
                await self._read()
            except OSError as error:  # no file can be opened, say; engines must not feel it
                if not failed:
                    log.warning("node cannot be read, earlier readings stay", reason=str(error))
                failed = True
            else:
                failed = False

    async def _read(self) -> None:
        await self._devices.read()
        self._engines = await anyio.to_thread.run_sync(self._list_engines)
        self._installable = await anyio.to_thread.run_sync(self._list_installable)
        self._ram_mib, self._available_mib = machine.memory_mib()
        self._disk_free_mib = await anyio.to_thread.run_sync(self._look_at_disk)

    def __call__(self) -> NodeInventory:
        settings = self._settings
        return NodeInventory(
            node=NodeId(settings.node_id),
            agent_uid=self._uid,
            boot_id=self._boot_id,
            machine_id=self._machine_id,
            agent_version=self._version,
            hostname=socket.gethostname(),
            data_address=settings.data_address,
            pool=settings.pool,
            labels=settings.labels,
            fabric=self._fabric,
            cpu_count=machine.cpu_count(),
            ram_mib=self._ram_mib,
            ram_available_mib=self._available_mib,
            disk_free_mib=self._disk_free_mib,
            port_range=settings.port_range,
            devices=self._devices.devices,
            engines=self._engines,
            weights=self._weights(),
            capabilities=CAPABILITIES | ({GUARDED} if settings.guards_engines else set()),
            leaving=self._leaving,
            installable=self._installable,
            weights_port=self._weights_port(),
        )
