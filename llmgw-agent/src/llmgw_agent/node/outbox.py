"""What the node has to say: the newest report of each shard, once to every server.

A store: it holds and wakes, it never waits for a stream. Each link subscribes; a link that is
slow or away finds the newest report of each shard that changed, not their history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from llmgw.domain.ids import Epoch, SessionId, ShardId
from llmgw.domain.loads import EngineLoad
from llmgw.domain.nodes import Device, NodeInventory
from llmgw.domain.reports import Heartbeat, Registration, ShardReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Allegiance:
    """Whose orders the node takes."""

    epoch: Epoch  #: the highest seen
    cluster_id: str | None  #: None: never joined


class Outbox:
    """Newest report of every assigned shard, and whoever wants to hear of changes."""

    def __init__(
        self, *, inventory: Callable[[], NodeInventory], allegiance: Callable[[], Allegiance]
    ) -> None:
        self._inventory = inventory
        self._allegiance = allegiance
        self._reports: dict[ShardId, ShardReport] = {}
        self._loads: dict[ShardId, EngineLoad] = {}
        self._subscriptions: set[Subscription] = set()

    def publish(self, report: ShardReport) -> None:
        """Make this the newest report of its shard; an equal one is not sent again."""
        if self._reports.get(report.shard.id) != report:
            self._reports[report.shard.id] = report
            self._announce(report)

    def retire(self, report: ShardReport) -> None:
        """Send a last report of a shard that is assigned no more, and keep none."""
        self._reports.pop(report.shard.id, None)
        self._loads.pop(report.shard.id, None)
        self._announce(report)

    def measured(self, shard: ShardId, load: EngineLoad | None) -> None:
        """Keep the newest load for heartbeats; None: it cannot be read at present."""
        if load is None:
            self._loads.pop(shard, None)
        else:
            self._loads[shard] = load

    def reports(self) -> tuple[ShardReport, ...]:
        """Return the newest report of every assigned shard, ordered by shard."""
        return tuple(self._reports[key] for key in sorted(self._reports))

    def registration(self, session: SessionId) -> Registration:
        """Return the whole truth, for the first frame of a session."""
        allegiance = self._allegiance()
        return Registration(
            session=session,
            inventory=self._inventory(),
            epoch=allegiance.epoch,
            cluster_id=allegiance.cluster_id,
            shards=self.reports(),
        )

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """Hear of every change from now on. Subscribe first, register second: nothing is missed."""
        subscription = Subscription(self)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def heartbeat(
        self,
        session: SessionId,
        sequence: int,
        *,
        loop_lag_ms: float = 0.0,
        devices: tuple[Device, ...] | None = None,
    ) -> Heartbeat:
        """Return the present readings. devices: None for all of them, () for "unchanged"."""
        inventory = self._inventory()
        return Heartbeat(
            session=session,
            sequence=sequence,
            devices=inventory.devices if devices is None else devices,
            loads=tuple(sorted(self._loads.items())),
            ram_available_mib=inventory.ram_available_mib,
            disk_free_mib=inventory.disk_free_mib,
            loop_lag_ms=loop_lag_ms,
        )

    def _announce(self, report: ShardReport) -> None:
        for subscription in self._subscriptions:
            subscription.put(report)


class Subscription:
    """One link's view of the outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._pending: dict[ShardId, ShardReport] = {}
        self._filled = anyio.Event()
        self._devices_sent: tuple[Device, ...] = ()

    def put(self, report: ShardReport) -> None:
        """Replace what is pending of the same shard."""
        self._pending[report.shard.id] = report
        self._filled.set()

    async def next_reports(self) -> tuple[ShardReport, ...]:
        """Wait until something changed; return the newest of each changed shard, and forget it.

        A caller that fails to send them starts a new session, whose registration holds
        everything: nothing is put back.
        """
        await self._filled.wait()
        self._filled = anyio.Event()
        reports, self._pending = tuple(self._pending.values()), {}
        return reports

    def heartbeat(
        self, session: SessionId, sequence: int, *, loop_lag_ms: float = 0.0
    ) -> Heartbeat:
        """Return present readings, the devices left out while they are as last sent."""
        beat = self._outbox.heartbeat(session, sequence, loop_lag_ms=loop_lag_ms)
        if beat.devices == self._devices_sent:
            return self._outbox.heartbeat(session, sequence, loop_lag_ms=loop_lag_ms, devices=())
        self._devices_sent = beat.devices
        return beat
