"""Reads every store once and freezes what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import anyio.lowlevel

from llmgw.clock import Clock
from llmgw.contracts.sinks import Published, UsageSource
from llmgw.control.decide.lifecycle import settled
from llmgw.control.decide.snapshot import ClusterSnapshot, Engine, Limits, ReplicaRecord
from llmgw.control.state.desired import Desired
from llmgw.control.state.inventory import Inventory
from llmgw.control.state.leases import Leadership
from llmgw.control.state.replicas import Replicas
from llmgw.control.state.wake import Wake
from llmgw.domain.endpoints import RouterUsage
from llmgw.domain.ids import Epoch
from llmgw.domain.weights import WeightFacts

#: Replicas that are put together in one go, which takes some ten microseconds each.
SLICE = 200

Fingerprint = tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Stores:
    """Everything that the control plane remembers."""

    inventory: Inventory
    replicas: Replicas
    desired: Desired
    leadership: Leadership
    wake: Wake
    facts: dict[str, WeightFacts]
    learned: dict[str, float]

    def know_weights(self, facts: Mapping[str, WeightFacts]) -> None:
        """Take in what headers say of weights, by ref: it decides where they fit."""
        if any(self.facts.get(ref) != item for ref, item in facts.items()):
            self.facts.update(facts)
            self.desired.revision += 1


class _AtOnce:
    """Routers that have in force at once what they are told."""

    serial = 0

    def in_force(self) -> int:
        return self.serial


AT_ONCE: Published = _AtOnce()


class Observer:
    """Makes snapshots. Judging silence is part of looking, so that no view shows a stale state."""

    def __init__(
        self,
        stores: Stores,
        *,
        engines: Mapping[str, Engine],
        limits: Limits,
        settle_s: float,
        usage: UsageSource | None,
        published: Published,
    ) -> None:
        self._stores = stores
        self._engines = engines
        self._limits = limits
        self._settle_s = settle_s
        self._usage = usage
        self._published = published
        self._was_settled = False
        self.settles_in_s: float | None = None
        self.silence_recheck_s: float | None = None
        self.latest: ClusterSnapshot | None = None
        self._recorded: tuple[Fingerprint, tuple[ReplicaRecord, ...]] | None = None

    def fingerprint(self, now: float) -> Fingerprint:
        """Return what changes whenever a snapshot would, readings of load and memory left out.

        Cheap beside a snapshot of a large fleet, which would mostly show the same again.
        """
        stores = self._stores
        self.silence_recheck_s = stores.inventory.judge(now).recheck_after_s
        lease = stores.leadership.lease(now)
        return (
            stores.inventory.revision,
            stores.replicas.changes,
            stores.desired.revision,
            stores.wake.changes + stores.desired.changes,
            lease.epoch if lease else -1,
            self._settled(now),
        )

    def _records(self, fingerprint: Fingerprint, now: float) -> tuple[ReplicaRecord, ...]:
        stores = self._stores
        if self._recorded is None or self._recorded[0] != fingerprint[:3]:
            stores.replicas.moved(stores.inventory.moved_nowait())
            records = stores.replicas.records(
                orders=stores.desired.orders, nodes=stores.inventory.nodes, now=now
            )
            self._recorded = (fingerprint[:3], records)
        return self._recorded[1]

    async def catch_up(self, clock: Clock) -> None:
        """Put together anew what has changed, a part at a time; a snapshot right after it is cheap.

        Thousands of replicas that are ordered or reported at once would hold up the loop.
        """
        stores = self._stores
        stores.replicas.moved(stores.inventory.moved_nowait())
        while stores.replicas.refresh(
            orders=stores.desired.orders,
            nodes=stores.inventory.nodes,
            now=clock.monotonic(),
            limit=SLICE,
        ):
            await anyio.lowlevel.checkpoint()

    def observe(self, now: float) -> ClusterSnapshot:
        """Return the fleet as it is known at `now`."""
        stores = self._stores
        fingerprint = self.fingerprint(now)
        lease = stores.leadership.lease(now)
        # In this order: what a router sent before it confirmed a table is in the usage it reports.
        withdrawn = stores.desired.withdrawn(self._published.in_force())
        usage = self._usage.usage() if self._usage is not None else RouterUsage()
        nodes = dict(stores.inventory.nodes)
        self.latest = ClusterSnapshot(
            now=now,
            term=lease.term if lease else 0,
            epoch=lease.epoch if lease else Epoch(stores.leadership.highest_epoch),
            leading=lease is not None,
            settled=self._was_settled,
            models=stores.desired.catalog.models,
            hashes=stores.desired.catalog.hashes,
            nodes=nodes,
            replicas=self._records(fingerprint, now),
            engines=self._engines,
            usage=usage,
            withdrawn=withdrawn,
            usage_known=self._usage is not None,
            loads=stores.inventory.loads(),
            wanted=dict(stores.wake.wanted),
            pressure=stores.desired.pressure,
            avoided=dict(stores.desired.avoided),
            setbacks=stores.desired.setbacks,
            blocked_ports=stores.desired.blocked_ports(now),
            facts=dict(stores.facts),
            learned=dict(stores.learned),
            next_number=stores.desired.next_number,
            revision=(
                stores.inventory.revision + stores.replicas.revision + stores.desired.revision
            ),
            limits=self._limits,
        )
        return self.latest

    def _settled(self, now: float) -> bool:
        if self._was_settled:  # once is enough: from then on silence is judged node by node
            return True
        inventory = self._stores.inventory
        done, self.settles_in_s = settled(
            now=now,
            began=inventory.began,
            settle_s=self._settle_s,
            known=inventory.expected,
            registered=inventory.registrants,
            first_registration=inventory.first_registration,
        )
        self._was_settled = done
        return done
