"""Reads every store once and freezes what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmgw.contracts.sinks import UsageSource
from llmgw.control.decide.lifecycle import settled
from llmgw.control.decide.snapshot import ClusterSnapshot, Engine, Limits, WeightFacts
from llmgw.control.state.desired import Desired
from llmgw.control.state.inventory import Inventory
from llmgw.control.state.leases import Leadership
from llmgw.control.state.replicas import Replicas
from llmgw.control.state.wake import Wake
from llmgw.domain.endpoints import RouterUsage
from llmgw.domain.ids import Epoch


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
    ) -> None:
        self._stores = stores
        self._engines = engines
        self._limits = limits
        self._settle_s = settle_s
        self._usage = usage
        self._was_settled = False
        self.settles_in_s: float | None = None
        self.silence_recheck_s: float | None = None
        self.latest: ClusterSnapshot | None = None

    def observe(self, now: float) -> ClusterSnapshot:
        """Return the fleet as it is known at `now`."""
        stores = self._stores
        judgement = stores.inventory.judge(now)
        self.silence_recheck_s = judgement.recheck_after_s
        lease = stores.leadership.lease(now)
        usage = self._usage.usage() if self._usage is not None else RouterUsage()
        nodes = dict(stores.inventory.nodes)
        self.latest = ClusterSnapshot(
            now=now,
            term=lease.term if lease else 0,
            epoch=lease.epoch if lease else Epoch(stores.leadership.highest_epoch),
            leading=lease is not None,
            settled=self._settled(now),
            models=stores.desired.catalog.models,
            hashes=stores.desired.catalog.hashes,
            nodes=nodes,
            replicas=stores.replicas.records(orders=stores.desired.orders, nodes=nodes, now=now),
            engines=self._engines,
            usage=usage,
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
        registered = [item.id for item in inventory.nodes.values() if item.inventory is not None]
        done, self.settles_in_s = settled(
            now=now,
            began=inventory.began,
            settle_s=self._settle_s,
            known=inventory.expected,
            registered=registered,
            first_registration=inventory.first_registration,
        )
        self._was_settled = done
        return done
