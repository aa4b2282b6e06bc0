"""Who holds which device and port, kept while one plan is made.

The only mutable thing among the decisions: built from a snapshot, booked in as the plan grows,
thrown away with it. Every booking of a plan goes through `book`, which refuses to give a device
or a port twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from llmgw.control.decide.snapshot import ClusterSnapshot, NodeRecord, ReplicaRecord
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import DeviceId, ModelName, NodeId
from llmgw.domain.nodes import Device, NodeInventory
from llmgw.domain.replicas import ReplicaState


class DoubleBooking(AssertionError):
    """A plan tried to give a device or port away twice: a bug in whoever planned."""


class NodeAccount:
    """What is left on one node."""

    __slots__ = ("free", "index", "inventory", "models", "ram_booked_mib", "record", "replicas")

    def __init__(self, record: NodeRecord, inventory: NodeInventory, index: int) -> None:
        self.record = record
        self.inventory = inventory
        self.index = index  #: position in the fleet, ordered by id
        parents = {device.parent for device in inventory.devices if device.parent is not None}
        #: Not booked, working or not. A partitioned device is given out in its parts only.
        self.free: dict[DeviceId, Device] = {
            device.id: device for device in inventory.devices if device.id not in parents
        }
        self.replicas = 0
        self.models: Counter[ModelName] = Counter()
        self.ram_booked_mib = 0.0

    @property
    def id(self) -> NodeId:
        return self.record.id


class Accounts:
    """The fleet's devices and ports during one plan."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        self.nodes: dict[NodeId, NodeAccount] = {}
        self.used_ports: dict[str, set[int]] = {}
        self._twins: dict[str, list[NodeAccount]] = {}
        #: Devices by machine that somebody uses now: all that are booked but sleepers' own.
        self._used: set[tuple[str, DeviceId]] = set()
        for node_id in sorted(snapshot.nodes):
            record = snapshot.nodes[node_id]
            if record.inventory is None:
                continue
            account = NodeAccount(record, record.inventory, len(self.nodes))
            self.nodes[node_id] = account
            self._twins.setdefault(record.machine, []).append(account)
        for machine, port in snapshot.blocked_ports:
            self.used_ports.setdefault(machine, set()).add(port)
        for replica in snapshot.replicas:
            if holds_room(replica):
                for node, spec in replica.shards:
                    self.take(node, spec, uses=replica.replica.state is not ReplicaState.SLEEPING)

    def book(self, node: NodeId, spec: ShardSpec) -> None:
        """Give the shard its devices and ports. Raises DoubleBooking if one is taken."""
        account = self.nodes[node]
        if missing := [device for device in spec.devices if device not in account.free]:
            raise DoubleBooking(f"{missing} of {node} for {spec.id}")
        taken = self.used_ports.setdefault(account.record.machine, set())
        if twice := taken & set(spec.ports):
            raise DoubleBooking(f"ports {sorted(twice)} of {node} for {spec.id}")
        self.take(node, spec)

    def release(self, node: NodeId, spec: ShardSpec) -> None:
        """Give back what the shard holds: for asking what would fit if it were gone."""
        account = self.nodes.get(node)
        if account is None:
            return
        devices = {device.id: device for device in account.inventory.devices}
        machine = account.record.machine
        self._used.difference_update((machine, device) for device in spec.devices)
        for twin in self._twins[machine]:
            own = {device.id for device in twin.inventory.devices}
            twin.free.update(
                {item: devices[item] for item in spec.devices if item in devices and item in own}
            )
        self.used_ports.get(account.record.machine, set()).difference_update(spec.ports)
        self._count(account, spec, -1)

    def lend(self, node: NodeId, spec: ShardSpec) -> None:
        """Offer the devices of a sleeping shard, as far as nobody has them yet."""
        account = self.nodes.get(node)
        if account is None:
            return
        for twin in self._twins[account.record.machine]:
            for device in twin.inventory.devices:
                if device.id in spec.devices and not self._is_used(node, device.id):
                    twin.free[device.id] = device

    def can_wake(self, node: NodeId, spec: ShardSpec) -> bool:
        """Return whether nobody uses the devices of a sleeping shard."""
        return node in self.nodes and not any(
            self._is_used(node, device) for device in spec.devices
        )

    def wake(self, node: NodeId, spec: ShardSpec) -> None:
        """Take back what a sleeping shard has lent. Raises DoubleBooking if somebody uses it."""
        if not self.can_wake(node, spec):
            raise DoubleBooking(f"devices of {node} for {spec.id}, which sleeps")
        self._use(self.nodes[node], spec)

    def _is_used(self, node: NodeId, device: DeviceId) -> bool:
        return (self.nodes[node].record.machine, device) in self._used

    def _use(self, account: NodeAccount, spec: ShardSpec) -> None:
        machine = account.record.machine
        self._used.update((machine, device) for device in spec.devices)
        for twin in self._twins[machine]:
            for device in spec.devices:
                twin.free.pop(device, None)

    def free_ports(self, node: NodeId, count: int, extra: Iterable[int] = ()) -> tuple[int, ...]:
        """Return the lowest free ports of the node's machine; fewer than `count` if short.

        extra: ports promised to other shards of the same plan step, not booked yet.
        """
        account = self.nodes[node]
        low = max(self.snapshot.limits.port_range[0], account.inventory.port_range[0])
        high = min(self.snapshot.limits.port_range[1], account.inventory.port_range[1])
        taken = self.used_ports.get(account.record.machine, set()) | set(extra)
        found: list[int] = []
        port = low
        while port <= high and len(found) < count:
            if port not in taken:
                found.append(port)
            port += 1
        return tuple(found)

    def take(self, node: NodeId, spec: ShardSpec, *, uses: bool = True) -> None:
        """Note what a shard that exists already holds. uses: not so a sleeping one its devices."""
        account = self.nodes.get(node)
        if account is None:
            return  # not registered with this server: its devices are nobody's to give
        # Two agents on one machine see the same devices.
        if uses:
            self._use(account, spec)
        else:
            for twin in self._twins[account.record.machine]:
                for device in spec.devices:
                    twin.free.pop(device, None)
        self.used_ports.setdefault(account.record.machine, set()).update(spec.ports)
        self._count(account, spec, 1)

    def _count(self, account: NodeAccount, spec: ShardSpec, step: int) -> None:
        account.replicas += step
        account.models[spec.model] += step
        if not spec.devices and spec.memory_mib is not None:
            account.ram_booked_mib += step * spec.memory_mib


def holds_room(record: ReplicaRecord) -> bool:
    """Return whether devices and ports of the replica must not be given to another.

    A lost node keeps its bookings: nobody knows what runs there. A failed replica keeps them
    until its nodes have forgotten it, so that its ports and memory are really back.
    """
    return record.replica.state is not ReplicaState.STOPPED
