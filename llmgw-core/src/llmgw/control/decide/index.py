"""Which nodes may take a shard, found by set arithmetic instead of by looking at each.

Node number i of the fleet is bit i of an integer, so "pool chat, has vLLM, at least two H100
free" is three ANDs of thousand-bit numbers. The answer may hold a node too many (ports, strangers'
memory and avoidance are left to `examine`), never one too few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from llmgw.control.decide.accounts import Accounts, NodeAccount
from llmgw.control.decide.need import Need
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import ModelName, NodeId
from llmgw.domain.nodes import Device, DeviceHealth, NodeState

#: Devices that are the same to every profile but for their place.
Shape = tuple[str, str, int | None, tuple[tuple[str, str], ...]]


def shape_of(device: Device) -> Shape:
    """Return vendor, kind, memory and labels of a device."""
    labels = tuple(sorted(device.labels.items())) if device.labels else ()
    return (device.vendor, device.kind, device.memory_mib, labels)


class FleetIndex:
    """Bit sets over the nodes of some accounts; `update` keeps them true while a plan grows."""

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.order: list[NodeAccount] = list(accounts.nodes.values())
        self.everyone = (1 << len(self.order)) - 1
        self.open = 0  #: ready, and neither an operator nor its agent keeps replicas off
        self.pools: defaultdict[str, int] = defaultdict(int)
        self.labels: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.fabrics: defaultdict[str, int] = defaultdict(int)
        self.engines: defaultdict[tuple[str, str | None], int] = defaultdict(int)
        self.weights: defaultdict[str, int] = defaultdict(int)
        self.models: defaultdict[ModelName, int] = defaultdict(int)
        self.crowds: defaultdict[int, int] = defaultdict(int)  #: by number of replicas
        self._free: defaultdict[Shape, defaultdict[int, int]] = defaultdict(
            lambda: defaultdict(int)
        )  #: shape -> exact count of free devices -> nodes
        self._samples: dict[Shape, Device] = {}
        self._counts: list[dict[Shape, int]] = []
        self._crowd: list[int] = []
        for account in self.order:
            self._add(account)

    def _add(self, account: NodeAccount) -> None:
        bit = 1 << account.index
        record, inventory = account.record, account.inventory
        is_kept_off = record.cordoned or record.draining or inventory.leaving
        if record.state is NodeState.READY and not is_kept_off:
            self.open |= bit
        self.pools[inventory.pool] |= bit
        for item in inventory.labels.items():
            self.labels[item] |= bit
        for key in inventory.fabric:
            self.fabrics[key] |= bit
        for engine in inventory.engines:
            self.engines[engine.engine, None] |= bit
            self.engines[engine.engine, engine.version] |= bit
        for weights in inventory.weights:
            self.weights[weights.ref] |= bit
        for model, count in account.models.items():
            if count > 0:
                self.models[model] |= bit
        self.crowds[account.replicas] |= bit
        self._crowd.append(account.replicas)
        counts = self._count(account)
        self._counts.append(counts)
        for shape, count in counts.items():
            self._free[shape][count] |= bit

    def _count(self, account: NodeAccount) -> dict[Shape, int]:
        counts: dict[Shape, int] = {}
        for device in account.free.values():
            if device.health is DeviceHealth.OK:
                shape = shape_of(device)
                counts[shape] = counts.get(shape, 0) + 1
                self._samples.setdefault(shape, device)
        return counts

    def update(self, node: NodeId, spec: ShardSpec) -> None:
        """Take note that `spec` has been booked on, or released from, the node."""
        account = self.accounts.nodes[node]
        bit = 1 << account.index
        new = self._count(account)
        old = self._counts[account.index]
        for shape in old.keys() | new.keys():
            if (was := old.get(shape, 0)) != (now := new.get(shape, 0)):
                self._free[shape][was] &= ~bit
                if now:
                    self._free[shape][now] |= bit
        self._counts[account.index] = new
        self.crowds[self._crowd[account.index]] &= ~bit
        self._crowd[account.index] = account.replicas
        self.crowds[account.replicas] |= bit
        if account.models[spec.model] > 0:
            self.models[spec.model] |= bit
        else:
            self.models[spec.model] &= ~bit

    def eligible(self, need: Need) -> int:
        """Return the nodes that may take a shard as far as nothing booked is concerned."""
        found = self.open & self.pools.get(need.profile.pool, 0)
        for item in need.profile.labels.items():
            found &= self.labels.get(item, 0)
        if need.node_fabric is not None:
            found &= self.fabrics.get(need.node_fabric, 0)
        if need.engine is None:
            return 0
        if not need.engine.installable and need.profile.command is None:
            found &= self.engines.get((need.profile.engine, need.profile.version), 0)
        for node in need.avoided:
            if (account := self.accounts.nodes.get(node)) is not None:
                found &= ~(1 << account.index)
        return found

    def levels(self, need: Need) -> list[int]:
        """Return eligible nodes with room, the fullest first, in groups that are equally full."""
        found = self.eligible(need)
        if not found:
            return []
        if need.devices == 0:
            return [
                group
                for count in sorted(self.crowds, reverse=True)
                if (group := self.crowds[count] & found)
            ]
        levels: defaultdict[int, int] = defaultdict(int)
        for shape, by_count in self._free.items():
            if not self._fits(shape, need):
                continue
            for count, nodes in by_count.items():
                if count >= need.devices and (group := nodes & found):
                    levels[count] |= group
        return [levels[count] for count in sorted(levels)]

    def _fits(self, shape: Shape, need: Need) -> bool:
        vendor, kind, memory_mib, _ = shape
        if vendor not in need.vendors:
            return False
        if not need.matches(self._samples[shape]):
            return False
        demand = need.demand_on(kind)
        if demand is None:
            return False
        if memory_mib is None:
            return need.profile.devices.memory_gib is not None
        return memory_mib >= demand.memory_mib

    def preferred(self, group: int, need: Need) -> Iterator[NodeAccount]:
        """Yield a group's nodes: those with weights, then those without the model, then by id."""
        with_weights = self.weights.get(need.profile.weights, 0)
        with_model = self.models.get(need.model.name, 0)
        for part in (
            group & with_weights & ~with_model,
            group & ~with_weights & ~with_model,
            group & with_model,
        ):
            yield from self.members(part)

    def members(self, nodes: int) -> Iterator[NodeAccount]:
        """Yield the nodes of a set by id."""
        while nodes:
            low = nodes & -nodes
            yield self.order[low.bit_length() - 1]
            nodes ^= low
