"""What a server brings to the store: its catalog files, requests' usage, when nodes were seen.

The other direction is `store.Follower`. Everything here repeats: what could not be written
now is at the next turn; usage waits in the router's ledger, files wait for leadership.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import anyio
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.control.view import FleetView, NodeView
from llmgw.domain.catalog import Model
from llmgw.errors import ConfigError, NotLeader, RequestError, StoreUnavailable
from llmgw.logs import get_logger
from llmgw.router.usage import UsageLedger
from llmgw.store import Store
from llmgw.store.nodes import SeenNode

log = get_logger(__name__)

EVERY_S = 2.0
_SEEN_EVERY_S = 60.0
_FILE = "file:"

ModelsByFile = Mapping[str, Sequence[Model]]
"""Models by the name of the file that owns them."""


class Deposits:
    """One loop that writes. imported: called after the catalog of the files went in."""

    def __init__(
        self,
        store: Store,
        *,
        ledger: UsageLedger,
        fleet: FleetView | None,
        files: ModelsByFile,
        imported: Callable[[], Awaitable[None]],
        clock: Clock,
        may_empty: bool = False,
    ) -> None:
        """may_empty: a file that vanished or is empty takes its models away."""
        self._store = store
        self._ledger = ledger
        self._fleet = fleet
        self._files: ModelsByFile | None = files  #: None: they are in the store
        self._on_import = imported
        self._clock = clock
        self._may_empty = may_empty
        self._compared: ModelsByFile | None = None
        self._seen: frozenset[str] = frozenset()
        self._seen_at = float("-inf")
        self._away = False
        self._refused: str | None = None

    @property
    def refused(self) -> str | None:
        """Why what the files say is not in force; None: it is."""
        return self._refused

    def set_files(self, files: ModelsByFile) -> None:
        """Replace what the files say; it is imported at the next turn."""
        self._files = files

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Write for ever; started after the first time."""
        await self.write()
        task_status.started()
        while True:
            await self._clock.sleep(EVERY_S)
            await self.write()

    async def write(self) -> None:
        """Write what is new.

        Never raises for a store that is away, one that a newer server has written what this one
        cannot read to, or another server that leads.
        """
        try:
            await self._usage()
            if self._fleet is not None:
                await self._import_files()
                await self._nodes(self._fleet.nodes())
        except NotLeader:
            pass  # the leader's files count, and its sight of nodes
        except (StoreUnavailable, ConfigError) as error:  # away, or a newer server's
            if not self._away:
                log.warning("store unavailable", reason=str(error), retry_in_s=EVERY_S)
            self._away = True
            return
        if self._away:
            log.info("store is back")
        self._away = False

    async def _usage(self) -> None:
        while (batch := self._ledger.batch()) is not None:
            await self._store.run(partial(self._store.usage.add, batch))
            self._ledger.settle(batch.id)

    async def _import_files(self) -> None:
        files = self._files
        if files is None:
            return
        try:
            orphans = await self._store.run(partial(self._write_files, files))
        except NotLeader as error:
            await self._compare(files, error)
            raise
        except RequestError as error:
            if self._refused != str(error):
                log.error("catalog files not in force", reason=str(error))
            self._refused = str(error)
            return
        self._refused = None
        if orphans:
            log.warning(
                "models kept though their file has vanished or is empty",
                models=", ".join(orphans),
                way_out="start the server with --allow-empty to remove them",
            )
        if self._files is files:
            self._files = None
        await self._on_import()

    async def _compare(self, files: ModelsByFile, because: NotLeader) -> None:
        """Say once where our files differ from what the leader's have put in force."""
        if self._compared is files:
            return
        entries = await self._store.run(self._store.catalog.entries)
        in_force = {entry.model.name: entry.model for entry in entries}
        ours = [model for told in files.values() for model in told]
        if differing := [model.name for model in ours if in_force.get(model.name) != model]:
            log.warning(
                "catalog files differ from the leader's, which count",
                models=", ".join(differing),
                leader=because.leader,
            )
        self._compared = files

    def _write_files(self, files: ModelsByFile) -> list[str]:
        """Make the store's entries of files what the files say. On the store thread.

        Returns the models that stay though no file has them: theirs has vanished or is empty,
        which is an accident more often than it is meant.
        """
        owned: dict[str, list[Model]] = {}
        for entry in self._store.catalog.entries():
            if entry.owner.startswith(_FILE):
                owned.setdefault(entry.owner.removeprefix(_FILE), []).append(entry.model)
        said = {model.name for told in files.values() for model in told}
        orphans: list[str] = []
        # Names leave first: a model may have moved from one file to another.
        for name, models in owned.items():
            told_here = {model.name for model in files.get(name, ())}
            kept = [model for model in models if model.name in told_here]
            if not told_here and not self._may_empty:
                kept = [model for model in models if model.name not in said]
                orphans += [model.name for model in kept]
            if len(kept) != len(models):
                self._store.catalog.replace_owned(_FILE + name, kept, who=_FILE + name)
        for name, told in files.items():
            self._store.catalog.replace_owned(_FILE + name, told, who=_FILE + name)
        return orphans

    async def _nodes(self, nodes: Sequence[NodeView]) -> None:
        present = [node for node in nodes if node.record.inventory is not None]
        ids = frozenset(str(node.record.id) for node in present)
        now = self._clock.monotonic()
        # A new node at once: a server that starts waits for those that it knows.
        if ids <= self._seen and now - self._seen_at < _SEEN_EVERY_S:
            return
        wall = self._clock.wall()
        await self._store.run(
            partial(self._store.nodes.record_seen, [_seen(node, wall) for node in present])
        )
        self._seen, self._seen_at = ids, now


def _seen(node: NodeView, wall: float) -> SeenNode:
    inventory = node.record.inventory
    assert inventory is not None  # noqa: S101 # the caller leaves out those without
    return SeenNode(
        id=inventory.node,
        agent_uid=inventory.agent_uid,
        machine_id=inventory.machine_id,
        hostname=inventory.hostname,
        pool=inventory.pool,
        at=wall - node.silent_s,
    )
