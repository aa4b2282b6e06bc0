"""What each node said last, and what its silence amounts to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from llmgw.control.decide.lifecycle import Judgement, SilenceLimits, Vitals, judge_nodes
from llmgw.control.decide.snapshot import NodeRecord
from llmgw.domain.ids import NodeId, SessionId, ShardId
from llmgw.domain.loads import EngineLoad
from llmgw.domain.nodes import Device, DeviceHealth, NodeState
from llmgw.domain.reports import Heartbeat, Registration


class NodeIntent(Protocol):
    """What operators decided about a node; kept in the store, and there before it registers.

    Each decision is the operator's reason, None where it was not taken.
    """

    @property
    def id(self) -> NodeId: ...

    @property
    def cordoned(self) -> str | None: ...

    @property
    def draining(self) -> str | None: ...

    @property
    def drain_until(self) -> float | None:
        """Unix seconds after which draining replicas are stopped; None: the usual limit."""
        ...

    @property
    def fenced(self) -> str | None: ...

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels that an operator set, over the node's own."""
        ...


class Inventory:
    """Nodes by id. `revision` changes with whatever placement depends on."""

    def __init__(self, *, limits: SilenceLimits, drain_limit_s: float, now: float) -> None:
        self.revision = 0
        self.began = now
        self.first_registration: float | None = None
        self.braked = False
        self.expected: set[NodeId] = set()  #: known from before this server, so worth waiting for
        self.registrants: set[NodeId] = set()  #: those that have registered with it
        self._limits = limits
        self._drain_limit_s = drain_limit_s
        self._drain_ends: dict[NodeId, float] = {}
        self._grace_until = now
        self._last_lost_at: float | None = None
        self._nodes: dict[NodeId, NodeRecord] = {}
        self._last_seen: OrderedDict[NodeId, float] = OrderedDict()  #: the longest silent first
        self._unwell: dict[NodeId, None] = {}  #: not ready, or without a session; in order
        self._moved: set[NodeId] = set()
        self._intents: dict[NodeId, NodeIntent] = {}
        self._unfenced: set[NodeId] = set()
        self._own_labels: dict[NodeId, Mapping[str, str]] = {}
        self._loads: dict[NodeId, Mapping[ShardId, EngineLoad]] = {}
        self._judge_at: float | None = now  #: nobody's state changes before; None: of nobody at all

    @property
    def nodes(self) -> Mapping[NodeId, NodeRecord]:
        return self._nodes

    @property
    def last_seen(self) -> Mapping[NodeId, float]:
        """When each node last gave a sign of life. Not in its record, which it would make new."""
        return self._last_seen

    def moved_nowait(self) -> frozenset[NodeId]:
        """Return the nodes whose state may have changed since this was last asked, or that went."""
        moved, self._moved = frozenset(self._moved), set()
        return moved

    def grant_grace(self, until: float) -> None:
        """Nobody becomes lost before `until`: this server may have been deaf itself."""
        self._grace_until = max(self._grace_until, until)
        self._judge_soon()

    def know(self, intents: Iterable[NodeIntent], *, now: float, wall: float) -> tuple[NodeId, ...]:
        """Take over operators' decisions; a node that has not registered is listed as silent.

        Returns the nodes that have just been fenced: nothing is believed to run there any more.
        """
        fenced: list[NodeId] = []
        for intent in intents:
            before = self._intents.get(intent.id)
            self._intents[intent.id] = intent
            if intent.draining is None:
                self._drain_ends.pop(intent.id, None)
            elif intent.drain_until is not None:
                self._drain_ends[intent.id] = now + intent.drain_until - wall
            else:
                self._drain_ends.setdefault(intent.id, now + self._drain_limit_s)
            if intent.fenced is not None:
                self.expected.discard(intent.id)
                if before is None or before.fenced != intent.fenced:
                    self._unfenced.discard(intent.id)
                    fenced.append(intent.id)
            known = record = self._nodes.get(intent.id)
            if record is None:
                if intent.fenced is None:
                    self.expected.add(intent.id)
                record = NodeRecord(id=intent.id, state=NodeState.DISCONNECTED, since=now)
                self._see(intent.id, now)
            record = self._with_intent(record, now)
            if record != known:
                self._keep(record)
                self._judge_soon()
                self.revision += 1
        return tuple(fenced)

    def forget(self, node: NodeId) -> None:
        """Drop a node that will not come back. If it does, it registers as a new one."""
        self._nodes.pop(node, None)
        self._last_seen.pop(node, None)
        self._unwell.pop(node, None)
        self._moved.add(node)
        self._intents.pop(node, None)
        self._drain_ends.pop(node, None)
        self._own_labels.pop(node, None)
        self._unfenced.discard(node)
        self.expected.discard(node)
        self.registrants.discard(node)
        self._loads.pop(node, None)
        self.revision += 1

    def registered(self, registration: Registration, *, now: float) -> None:
        """Take in the whole of a node at the start of a session."""
        inventory = registration.inventory
        before = self._nodes.get(inventory.node)
        if self.first_registration is None:
            self.first_registration = now
        state = NodeState.READY
        since = before.since if before is not None and before.state is state else now
        record = NodeRecord(
            id=inventory.node,
            state=state,
            since=since,
            session=registration.session,
            session_since=now,
            inventory=inventory,
        )
        # A fenced node that is back has reported what really runs: the fence has done its work.
        self._unfenced.add(inventory.node)
        self._own_labels[inventory.node] = inventory.labels
        self._see(inventory.node, now)
        self.registrants.add(inventory.node)
        self._keep(self._with_intent(record, now))
        self.revision += 1
        due = now + self._limits.suspect_after
        if self.braked:
            self._judge_soon()
        elif self._judge_at is None or due < self._judge_at:
            self._judge_at = due  # not at once: a thousand of them come to a new server

    def heartbeat(self, node: NodeId, beat: Heartbeat, *, now: float) -> bool:
        """Note a sign of life; False if it belongs to a session that is not the present one."""
        record = self._nodes.get(node)
        if record is None or record.session != beat.session or record.inventory is None:
            return False
        self._heard(record, now)
        inventory = record.inventory
        devices = _newer_devices(inventory.devices, beat.devices)
        if devices is not inventory.devices:
            if _availability(devices) != _availability(inventory.devices):
                self.revision += 1
            inventory = replace(inventory, devices=devices)
        ram_mib, disk_mib = beat.ram_available_mib, beat.disk_free_mib
        ram_mib = inventory.ram_available_mib if ram_mib is None else ram_mib
        disk_mib = inventory.disk_free_mib if disk_mib is None else disk_mib
        if (ram_mib, disk_mib) != (inventory.ram_available_mib, inventory.disk_free_mib):
            inventory = replace(inventory, ram_available_mib=ram_mib, disk_free_mib=disk_mib)
        if inventory is not record.inventory:
            self._nodes[node] = replace(record, inventory=inventory)
        if beat.loads:
            self._loads[node] = dict(beat.loads)
        return True

    def seen(self, node: NodeId, session: SessionId, *, now: float) -> bool:
        """Note any other message of a session; False if it is not the present one."""
        record = self._nodes.get(node)
        if record is None or record.session != session:
            return False
        self._heard(record, now)
        return True

    def disconnected(self, node: NodeId, session: SessionId) -> bool:
        """Note the end of a session; False if a newer one has taken its place."""
        record = self._nodes.get(node)
        if record is None or record.session != session:
            return False
        self._judge_soon()
        self._nodes[node] = replace(record, session=None)
        self._unwell[node] = None
        return True

    def judge(self, now: float) -> Judgement:
        """Bring every node's state up to date with its silence; return what changed.

        Asked at every look at the fleet, so a thousand nodes are gone through only when somebody
        may be due: a heartbeat of a ready node puts that off, and nothing else can bring it near.
        """
        if self._judge_at is None or now < self._judge_at:
            wait_s = None if self._judge_at is None else self._judge_at - now
            return Judgement(changed={}, braked=self.braked, recheck_after_s=wait_s)
        judgement = self._judged(now)
        if self.braked and not judgement.braked:
            # Half a fleet comes back one by one. The first ones end the brake, and the last ones
            # would be lost for being a tenth of a second later.
            self.grant_grace(now + self._limits.brake_grace)
            judgement = self._judged(now)
        self.braked = judgement.braked
        for node, state in judgement.changed.items():
            self._keep(replace(self._nodes[node], state=state, since=now))
            self.revision += 1
            if state is NodeState.LOST:
                self._last_lost_at = now
                self._loads.pop(node, None)
        wait_s = 0.0 if judgement.changed else judgement.recheck_after_s
        self._judge_at = None if wait_s is None else now + wait_s
        return judgement

    def _judged(self, now: float) -> Judgement:
        silent = list(self._unwell)
        longest_s = 0.0  # silence of those who are well
        for node, last_seen in self._last_seen.items():
            if node in self._unwell:
                continue
            if now - last_seen < self._limits.suspect_after:
                longest_s = now - last_seen
                break
            silent.append(node)
        nodes, heard = self._nodes, self._last_seen
        vitals = [
            Vitals(node, (record := nodes[node]).state, heard[node], record.session is not None)
            for node in silent
        ]
        return judge_nodes(
            vitals,
            well=len(self._nodes) - len(silent),
            longest_s=longest_s,
            now=now,
            limits=self._limits,
            last_lost_at=self._last_lost_at,
            grace_until=self._grace_until,
        )

    def _judge_soon(self) -> None:
        self._judge_at = float("-inf")

    def _keep(self, record: NodeRecord) -> None:
        """Put a record in the place of one whose state may have been another."""
        self._nodes[record.id] = record
        self._moved.add(record.id)
        if record.state is NodeState.READY and record.session is not None:
            self._unwell.pop(record.id, None)
        else:
            self._unwell[record.id] = None

    def _see(self, node: NodeId, now: float) -> None:
        self._last_seen[node] = now
        self._last_seen.move_to_end(node)

    def _heard(self, record: NodeRecord, now: float) -> None:
        """Note a sign of life: of a node that was silent it changes the state."""
        self._last_seen[record.id] = now
        self._last_seen.move_to_end(record.id)
        if record.state is not NodeState.READY:
            self._judge_soon()

    def loads(self) -> dict[ShardId, EngineLoad]:
        """Return the newest load of each shard whose engine says it."""
        return {shard: load for loads in self._loads.values() for shard, load in loads.items()}

    def _with_intent(self, record: NodeRecord, now: float) -> NodeRecord:
        intent = self._intents.get(record.id)
        leaving = record.inventory is not None and record.inventory.leaving
        own_reason = "its agent stops its engines" if leaving else ""
        if intent is None:
            return replace(record, because=own_reason)
        fenced = intent.fenced is not None and record.id not in self._unfenced
        if fenced and record.state is not NodeState.FENCED:
            record = replace(record, state=NodeState.FENCED, since=now)
        elif not fenced and record.state is NodeState.FENCED:
            record = replace(record, state=NodeState.DISCONNECTED, since=now)
        inventory = record.inventory
        if inventory is not None:
            labels = {**self._own_labels.get(record.id, {}), **intent.labels}
            if labels != inventory.labels:
                inventory = replace(inventory, labels=labels)
        reasons = (intent.fenced if fenced else None, intent.draining, intent.cordoned)
        return replace(
            record,
            inventory=inventory,
            cordoned=intent.cordoned is not None or intent.draining is not None,
            draining=intent.draining is not None,
            drain_ends=self._drain_ends.get(record.id, 0.0),
            because=next((reason for reason in reasons if reason), own_reason),
        )


def _newer_devices(known: tuple[Device, ...], readings: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the known devices with newer readings; one that is missing from them has failed."""
    if not readings or readings == known:
        return known
    newer = {device.id: device for device in readings}
    kept = tuple(
        newer.pop(
            device.id,
            replace(device, health=DeviceHealth.FAILED, health_reason="no longer listed"),
        )
        for device in known
    )
    return (*kept, *newer.values())


def _availability(devices: tuple[Device, ...]) -> list[tuple[str, DeviceHealth]]:
    return [(device.id, device.health) for device in devices]
