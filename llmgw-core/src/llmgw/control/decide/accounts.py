"""Who holds which device, port and weights, kept while one plan is made.

The only mutable things among the decisions are these accounts and what is built on them: made
from a snapshot, booked in as the plan grows. Every booking of a plan goes through `book`, which
refuses to give a device or a port twice. `follow` brings them up to the next snapshot.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from llmgw.control.decide.snapshot import ClusterSnapshot, NodeRecord, ReplicaRecord
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import DeviceId, ModelName, NodeId, ReplicaId
from llmgw.domain.nodes import Device, DeviceHealth, NodeInventory
from llmgw.domain.replicas import ReplicaState, ShardState
from llmgw.domain.reports import ShardReport

#: Devices that are the same to every profile but for their place.
Shape = tuple[str, str, int | None, tuple[tuple[str, str], ...]]


#: In which a shard may still wait for its weights.
_BEFORE_WEIGHTS = frozenset({ShardState.ASSIGNED, ShardState.INSTALLING, ShardState.FETCHING})


class DoubleBooking(AssertionError):
    """A plan tried to give a device or port away twice: a bug in whoever planned."""


def shape_of(device: Device) -> Shape:
    """Return vendor, kind, memory and labels of a device."""
    labels = tuple(sorted(device.labels.items())) if device.labels else ()
    return (device.vendor, device.kind, device.memory_mib, labels)


class NodeAccount:
    """What is left on one node."""

    __slots__ = (
        "arriving",
        "free",
        "index",
        "inventory",
        "models",
        "needed",
        "ram_booked_mib",
        "record",
        "replicas",
        "shapes",
        "sound",
        "usable",
        "version",
    )

    def __init__(self, record: NodeRecord, inventory: NodeInventory, index: int) -> None:
        self.record = record
        self.inventory = inventory
        self.index = index  #: position in the fleet, ordered by id
        parents = {device.parent for device in inventory.devices if device.parent is not None}
        #: A partitioned device is given out in its parts only.
        self.usable: Sequence[Device] = [
            device for device in inventory.devices if device.id not in parents
        ]
        self.shapes: dict[DeviceId, Shape] = {device.id: shape_of(device) for device in self.usable}
        #: Not booked, working or not.
        self.free: dict[DeviceId, Device] = {device.id: device for device in self.usable}
        #: How many free and working devices there are of each shape.
        self.sound: dict[Shape, int] = {}
        for device in self.usable:
            self._count_device(device, 1)
        self.replicas = 0
        self.models: Counter[ModelName] = Counter()
        self.ram_booked_mib = 0.0
        self.needed: set[str] = set()  #: weights that the node must not remove
        self.arriving: dict[str, float] = {}  #: MiB that have come, of needed ones not all there
        self.version = 0  #: rises with whatever is booked here, or on the same machine

    @property
    def id(self) -> NodeId:
        return self.record.id

    def take(self, device: DeviceId) -> None:
        """Note that somebody holds the device. Safe to repeat."""
        if (found := self.free.pop(device, None)) is not None:
            self._count_device(found, -1)

    def give(self, device: DeviceId) -> None:
        """Note that nobody holds the device, if it is one of this node's. Safe to repeat."""
        if device in self.shapes and device not in self.free:
            found = next(item for item in self.usable if item.id == device)
            self.free[device] = found
            self._count_device(found, 1)

    def need_weights(self, spec: ShardSpec, *, arrived_mib: float | None) -> None:
        """Note that a shard needs its weights here. arrived_mib: so much has come; None: all.

        Nothing takes this back within a plan: to let one that may sleep go frees no disk.
        """
        self.needed |= spec.refs
        if arrived_mib is not None:
            for ref in spec.refs:
                self.arriving[ref] = max(arrived_mib, self.arriving.get(ref, 0.0))

    def _count_device(self, device: Device, step: int) -> None:
        if device.health is DeviceHealth.OK:
            shape = self.shapes[device.id]
            self.sound[shape] = self.sound.get(shape, 0) + step


class Accounts:
    """The fleet's devices and ports during one plan."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._open_all(snapshot)

    def _open_all(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        self.nodes: dict[NodeId, NodeAccount] = {}
        self.used_ports: dict[str, set[int]] = {}
        self._twins: defaultdict[str, list[NodeAccount]] = defaultdict(list)
        #: Devices by machine that somebody uses now: all that are booked but sleepers' own.
        self._used: defaultdict[str, set[DeviceId]] = defaultdict(set)
        self._placed: dict[ReplicaId, ReplicaRecord] = {}
        self._on: defaultdict[NodeId, dict[ReplicaId, ReplicaRecord]] = defaultdict(dict)
        self._changed: set[str] = set()  #: machines on which something was booked or released
        for node_id in sorted(snapshot.nodes):
            record = snapshot.nodes[node_id]
            if record.inventory is not None:
                account = NodeAccount(record, record.inventory, len(self.nodes))
                self.nodes[node_id] = account
                self._twins[record.machine].append(account)
        self._place(snapshot.replicas)
        for machine, port in snapshot.blocked_ports:
            self.used_ports.setdefault(machine, set()).add(port)
        for replica in snapshot.replicas:
            self._hold(replica, replica.shards)
        self._changed.clear()

    def follow(self, snapshot: ClusterSnapshot) -> list[NodeAccount] | None:
        """Make these the accounts of another snapshot, as if they were new.

        Only machines on which something differs, or was booked since, are opened again. Returns
        their accounts; None: the nodes themselves are others, so all are new.
        """
        before = self.snapshot
        changed = self._moved_nodes(snapshot)
        if changed is None:
            self._open_all(snapshot)
            return None
        self.snapshot = snapshot
        changed |= self._changed
        if snapshot.replicas is not before.replicas:
            changed |= self._place(snapshot.replicas)
        changed |= {machine for machine, _ in snapshot.blocked_ports ^ before.blocked_ports}
        found = [account for machine in changed for account in self._open(machine)]
        self._changed.clear()
        return found

    def _moved_nodes(self, snapshot: ClusterSnapshot) -> set[str] | None:
        """Return the machines of nodes that are not as they were; None: there are other ones."""
        changed: set[str] = set()
        registered = 0
        for node, record in snapshot.nodes.items():
            if record.inventory is None:
                continue
            registered += 1
            account = self.nodes.get(node)
            if account is None:
                return None
            if account.record is not record:
                if account.record.machine != record.machine:
                    return None
                changed.add(record.machine)
        return changed if registered == len(self.nodes) else None

    def _place(self, replicas: Sequence[ReplicaRecord]) -> set[str]:
        """Note which replicas there are; return the machines on which one is not as it was."""
        before = self._placed
        self._placed = {record.replica.id: record for record in replicas}
        differ = [record for key, record in before.items() if self._placed.get(key) is not record]
        for record in differ:
            for node in record.nodes:
                self._on[node].pop(record.id, None)
        for key, record in self._placed.items():
            if before.get(key) is not record:
                differ.append(record)
                for node in record.nodes:
                    self._on[node][key] = record
        return {
            account.record.machine
            for record in differ
            for node in record.nodes
            if (account := self.nodes.get(node)) is not None
        }

    def _open(self, machine: str) -> list[NodeAccount]:
        """Replace the accounts of one machine's nodes by new ones."""
        twins = self._twins.get(machine, [])
        for position, before in enumerate(twins):
            record = self.snapshot.nodes[before.id]
            inventory = record.inventory or before.inventory
            account = NodeAccount(record, inventory, before.index)
            twins[position] = self.nodes[before.id] = account
        self._used.pop(machine, None)
        self.used_ports[machine] = {
            port for place, port in self.snapshot.blocked_ports if place == machine
        }
        for account in twins:
            for replica in self._on[account.id].values():
                own = [item for item in replica.shards if item[0] == account.id]
                self._hold(replica, own)
        return twins

    def _hold(self, replica: ReplicaRecord, shards: Iterable[tuple[NodeId, ShardSpec]]) -> None:
        if holds_room(replica):
            is_awake = replica.replica.state is not ReplicaState.SLEEPING
            for node, spec in shards:
                self.take(node, spec, uses=is_awake)
                if (account := self.nodes.get(node)) is not None:
                    arrived_mib = _arrived_mib(replica.reports.get(spec.id))
                    account.need_weights(spec, arrived_mib=arrived_mib)

    def twins(self, node: NodeId) -> Sequence[NodeAccount]:
        """Return the accounts of all nodes on the machine of this one, itself included."""
        return self._twins[self.nodes[node].record.machine]

    def book(self, node: NodeId, spec: ShardSpec) -> None:
        """Give the shard its devices and ports. Raises DoubleBooking if one is taken."""
        account = self.nodes[node]
        if missing := [device for device in spec.devices if device not in account.free]:
            raise DoubleBooking(f"{missing} of {node} for {spec.id}")
        taken = self.used_ports.setdefault(account.record.machine, set())
        if twice := taken.intersection(spec.ports):
            raise DoubleBooking(f"ports {sorted(twice)} of {node} for {spec.id}")
        self.take(node, spec)
        account.need_weights(spec, arrived_mib=0.0)

    def release(self, node: NodeId, spec: ShardSpec) -> None:
        """Give back what the shard holds: for asking what would fit if it were gone."""
        account = self.nodes.get(node)
        if account is None:
            return
        machine = account.record.machine
        self._used[machine].difference_update(spec.devices)
        for twin in self._note(machine):
            for device in spec.devices:
                twin.give(device)
        self.used_ports.get(machine, set()).difference_update(spec.ports)
        self._count(account, spec, -1)

    def lend(self, node: NodeId, spec: ShardSpec) -> None:
        """Offer the devices of a sleeping shard, as far as nobody has them yet."""
        account = self.nodes.get(node)
        if account is None:
            return
        for twin in self._note(account.record.machine):
            for device in spec.devices:
                if not self._is_used(node, device):
                    twin.give(device)

    def can_wake(self, node: NodeId, spec: ShardSpec) -> bool:
        """Return whether nobody uses the devices of a sleeping shard."""
        return node in self.nodes and not any(
            self._is_used(node, device) for device in spec.devices
        )

    def wake(self, node: NodeId, spec: ShardSpec) -> None:
        """Take back what a sleeping shard has lent. Raises DoubleBooking if somebody uses it."""
        if not self.can_wake(node, spec):
            raise DoubleBooking(f"devices of {node} for {spec.id}, which sleeps")
        self._use(self.nodes[node].record.machine, spec)

    def _is_used(self, node: NodeId, device: DeviceId) -> bool:
        return device in self._used[self.nodes[node].record.machine]

    def _use(self, machine: str, spec: ShardSpec, *, uses: bool = True) -> None:
        if uses:
            self._used[machine].update(spec.devices)
        # Two agents on one machine see the same devices.
        for twin in self._note(machine):
            for device in spec.devices:
                twin.take(device)

    def _note(self, machine: str) -> Sequence[NodeAccount]:
        """Remember that the machine's accounts are about to change; return them."""
        self._changed.add(machine)
        twins = self._twins[machine]
        for twin in twins:
            twin.version += 1
        return twins

    def free_ports(self, node: NodeId, count: int) -> tuple[int, ...]:
        """Return the lowest free ports of the node's machine; fewer than `count` if short."""
        account = self.nodes[node]
        low = max(self.snapshot.limits.port_range[0], account.inventory.port_range[0])
        high = min(self.snapshot.limits.port_range[1], account.inventory.port_range[1])
        taken = self.used_ports.get(account.record.machine, set())
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
        machine = account.record.machine
        self._use(machine, spec, uses=uses)
        self.used_ports.setdefault(machine, set()).update(spec.ports)
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


def _arrived_mib(report: ShardReport | None) -> float | None:
    """Return how much of a shard's weights has come to its node; None: all that it needs."""
    if report is None:
        return 0.0
    shard = report.shard
    if shard.state not in _BEFORE_WEIGHTS:
        return None
    if shard.state is ShardState.FETCHING and shard.progress and shard.progress.unit == "bytes":
        return shard.progress.done / (1 << 20)
    return 0.0
