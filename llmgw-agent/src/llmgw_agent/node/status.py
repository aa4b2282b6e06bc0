"""`<state>/status.json`: what `llmgw agent status` shows on the node, with no server at hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.domain.nodes import NodeInventory
from llmgw.domain.replicas import Shard
from llmgw.errors import ConfigError, Problem
from llmgw.logs import get_logger
from llmgw_agent.node.outbox import Outbox
from llmgw_agent.node.statefolder import is_agent_alive

log = get_logger(__name__)

_WRITE_EVERY_S = 5.0
_PAUSE_S = 0.1
_FILE = "status.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLink:
    """How the link to one server stands."""

    server: str
    state: str
    since: float  #: Unix seconds
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLine:
    """One shard for people; never its key."""

    shard: Shard
    model: str
    engine: str
    url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """The whole node as its agent sees it."""

    written_at: float  #: Unix seconds
    pid: int
    epoch: int
    cluster_id: str | None
    inventory: NodeInventory
    servers: tuple[ServerLink, ...]
    shards: tuple[ShardLine, ...]
    running: bool = False  #: whether the agent that wrote it still lives; engines may without it


class StatusFile:
    """Keeps the file true to a few seconds. A shell."""

    def __init__(
        self,
        path: Path,
        *,
        outbox: Outbox,
        inventory: Callable[[], NodeInventory],
        allegiance: Callable[[], tuple[int, str | None]],
        servers: Callable[[], tuple[ServerLink, ...]],
        clock: Clock,
    ) -> None:
        """allegiance: (epoch, cluster id)."""
        self._path = path
        self._outbox = outbox
        self._inventory = inventory
        self._allegiance = allegiance
        self._servers = servers
        self._clock = clock
        self._complained = False

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Write on every change and every few seconds, until cancelled."""
        with self._outbox.subscribe() as changes:
            await self._write()
            task_status.started()
            while True:
                with anyio.move_on_after(_WRITE_EVERY_S):
                    await changes.next_reports()
                await self._write()
                await self._clock.sleep(_PAUSE_S)  # many changes at once are one

    async def _write(self) -> None:
        epoch, cluster_id = self._allegiance()
        status = AgentStatus(
            written_at=self._clock.wall(),
            pid=os.getpid(),
            epoch=epoch,
            cluster_id=cluster_id,
            inventory=self._inventory(),
            servers=self._servers(),
            shards=tuple(
                ShardLine(
                    shard=report.shard,
                    model=report.spec.model,
                    engine=report.spec.engine,
                    url=report.url,
                )
                for report in self._outbox.reports()
            ),
        )
        try:
            await anyio.to_thread.run_sync(_replace, self._path, msgspec.json.encode(status))
            self._complained = False
        except OSError as error:
            if not self._complained:
                log.warning("status cannot be written", reason=str(error), next="trying on")
            self._complained = True


def read_status(state_dir: Path) -> AgentStatus:
    """Return what the agent of this folder said last, and whether it still runs.

    Raises ConfigError if no agent has ever run there.
    """
    try:
        data = (state_dir / _FILE).read_bytes()
        status = msgspec.json.decode(data, type=AgentStatus)
    except FileNotFoundError:
        message = "no agent has run with this state folder: start one, or give its --state-dir"
        raise ConfigError(str(state_dir), [Problem(path="", message=message)]) from None
    except msgspec.DecodeError as error:
        raise ConfigError(str(state_dir / _FILE), [Problem(path="", message=str(error))]) from None
    return replace(status, running=is_agent_alive(state_dir))


def _replace(path: Path, data: bytes) -> None:
    # Not synced: after a crash of the machine nobody wants yesterday's status.
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(data)
    beside.replace(path)
