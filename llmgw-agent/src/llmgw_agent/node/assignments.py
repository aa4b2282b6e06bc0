"""Which shards this node has been told to run, and under which epoch: its persisted intent.

A store. Every change is on disk before it is in memory, so that an answer to a command means
that the node will act on it, whatever dies in between. With no server in reach the node works
from this file alone. The disk may be slow; then the changes wait for it, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import anyio
import anyio.to_thread
import msgspec

from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import Epoch, ShardId
from llmgw.errors import ConfigError, Problem
from llmgw_agent.node.durable import write_atomically

_NO_EPOCH = Epoch(0)


class Intent(StrEnum):
    """What has been ordered of a shard."""

    RUN = "run"
    DRAIN = "drain"  #: goes on running, takes no new request
    SLEEP = "sleep"  #: gives its device memory back, keeps its process
    STOP = "stop"  #: stays listed until nothing of it is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """One shard, and the newest order about it."""

    spec: ShardSpec
    epoch: Epoch  #: of the newest command applied to it
    intent: Intent = Intent.RUN
    grace_s: float | None = None  #: of the stop; None: the engine's own
    sleep_level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    version: int = 1
    cluster_id: str | None = None
    epoch: Epoch = _NO_EPOCH
    shards: dict[str, Assigned] = field(default_factory=dict)


class Assignments:
    """The set of shards assigned to this node."""

    def __init__(self, path: Path, *, on_change: Callable[[], None] = lambda: None) -> None:
        """Read `path`, which need not exist. on_change is called after every change of the set.

        Raises ConfigError if it is not what this class wrote: starting with an empty set would
        end every engine of the node.
        """
        self._path = path
        self.on_change = on_change
        self.turn = anyio.Lock()
        """Held by whoever looks and then changes something, from the look on."""
        # Of its own: downloads may hold every thread that others share.
        self._threads = anyio.CapacityLimiter(1)
        try:
            self._document = msgspec.json.decode(path.read_bytes(), type=_Document)
        except FileNotFoundError:
            self._document = _Document()
        except msgspec.DecodeError as error:
            raise ConfigError(
                str(path),
                [
                    Problem(
                        path="",
                        message=f"cannot be read: {error}; move it away and the engines that run "
                        "are taken over from their own folders",
                    )
                ],
            ) from error

    @property
    def epoch(self) -> Epoch:
        """The highest epoch of any command so far."""
        return self._document.epoch

    @property
    def cluster_id(self) -> str | None:
        return self._document.cluster_id

    def all(self) -> Mapping[ShardId, Assigned]:
        """Return what is assigned now, by shard."""
        return MappingProxyType(
            {ShardId(key): value for key, value in self._document.shards.items()}
        )

    def get(self, shard: ShardId) -> Assigned | None:
        return self._document.shards.get(shard)

    async def put(self, assigned: Assigned) -> None:
        """Add or replace one shard, and remember its epoch. Raises DiskFull with nothing changed."""
        await self._store(
            replace(
                self._document,
                epoch=Epoch(max(self._document.epoch, assigned.epoch)),
                shards={**self._document.shards, assigned.spec.id: assigned},
            )
        )

    async def remove(self, shard: ShardId) -> None:
        """Forget a shard of which nothing is left. Raises DiskFull with nothing changed."""
        rest = {key: value for key, value in self._document.shards.items() if key != shard}
        await self._store(replace(self._document, shards=rest))

    async def raise_epoch(self, epoch: Epoch) -> None:
        """Never obey an epoch older than this one again."""
        if epoch > self._document.epoch:
            await self._store(replace(self._document, epoch=epoch))

    async def join(self, cluster_id: str, *, anew: bool = False) -> None:
        """Belong to this cluster. anew: leave the present one, whose epochs mean nothing there."""
        async with self.turn:
            if anew:
                await self._store(replace(self._document, cluster_id=cluster_id, epoch=_NO_EPOCH))
            elif self._document.cluster_id is None:
                await self._store(replace(self._document, cluster_id=cluster_id))

    def foreign_cluster(self, cluster_id: str) -> str | None:
        """Return why a server of this cluster must not be obeyed; None if it may."""
        if self._document.cluster_id in (None, cluster_id):
            return None
        return (
            f"this node belongs to cluster {self._document.cluster_id} and the server to "
            f"{cluster_id}: start the agent once with --rejoin to change over"
        )

    async def _store(self, document: _Document) -> None:
        if document == self._document:
            return
        if not self.turn.locked():
            raise RuntimeError("assignments are changed by whoever holds their turn")
        data = msgspec.json.encode(document)
        await anyio.to_thread.run_sync(write_atomically, self._path, data, limiter=self._threads)
        self._document = document
        self.on_change()
