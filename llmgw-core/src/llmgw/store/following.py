"""Keeps the rest of a server in step with the store: what this server writes, at once; what
another server writes, within two seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.domain.catalog import Model
from llmgw.domain.ids import NodeId
from llmgw.domain.keys import ApiKey, KeySpend
from llmgw.errors import ConfigError, LlmgwError
from llmgw.logs import get_logger
from llmgw.store.nodes import KnownNode
from llmgw.store.store import Store

log = get_logger(__name__)

POLL_S = 2.0


def _ignore(*_: object) -> None:
    """Somebody who is not interested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Who is told of what, on the event loop, with the whole new value; only after a change."""

    catalog: Callable[[tuple[Model, ...]], None] = _ignore
    nodes: Callable[[tuple[KnownNode, ...]], None] = _ignore
    node_forgotten: Callable[[NodeId], None] = _ignore
    keys: Callable[[tuple[ApiKey, ...], tuple[KeySpend, ...]], None] = _ignore


class Follower:
    """Reads what changed and passes it on."""

    def __init__(self, store: Store, listeners: Listeners, clock: Clock) -> None:
        self._store = store
        self._listeners = listeners
        self._clock = clock
        self._one_at_a_time = anyio.Lock()
        self._catalog_version: int | None = None
        self._intents: Mapping[NodeId, tuple[object, ...]] = {}
        self._keys: object = None

    async def refresh(self) -> None:
        """Look now: a change has just been written here.

        Raises what the store raises, StoreUnavailable above all; ConfigError for a catalog that
        cannot be read or put in force, after everything else has been passed on.
        """
        async with self._one_at_a_time:
            refused: ConfigError | None = None
            try:
                await self._follow_catalog()
            except ConfigError as error:
                # The old catalog stays; a revoked key must not go on being good until it is mended.
                refused = error
            await self._follow_nodes()
            await self._follow_keys()
            if refused is not None:
                raise refused

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follow for ever; started once everything has been passed on for the first time."""
        await self.refresh()
        task_status.started()
        away = False
        while True:
            await self._clock.sleep(POLL_S)
            try:
                await self.refresh()
            except LlmgwError as error:
                if not away:
                    log.warning("store not followed", reason=str(error), retry_in_s=POLL_S)
                away = True
            else:
                if away:
                    log.info("store followed again")
                away = False

    async def _follow_catalog(self) -> None:
        version = await self._store.run(self._store.catalog.version)
        if version == self._catalog_version:
            return
        entries = await self._store.run(self._store.catalog.entries)
        self._listeners.catalog(tuple(entry.model for entry in entries))
        self._catalog_version = version

    async def _follow_nodes(self) -> None:
        nodes = await self._store.run(self._store.nodes.list)
        # Not the whole row: being seen again is no decision of an operator.
        intents = {
            node.id: (node.cordoned, node.draining, node.drain_until, node.fenced) for node in nodes
        }
        before, self._intents = self._intents, intents
        for node_id in set(before) - set(intents):
            self._listeners.node_forgotten(node_id)
        changed = tuple(node for node in nodes if before.get(node.id) != intents[node.id])
        if changed:
            self._listeners.nodes(changed)

    async def _follow_keys(self) -> None:
        keys = await self._store.run(self._store.keys.valid)
        spend = await self._store.run(self._store.usage.spend)
        if (keys, spend) != self._keys:
            self._listeners.keys(keys, spend)
            self._keys = (keys, spend)
