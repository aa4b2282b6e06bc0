"""Servers: the real stores, observer, decisions and leadership, without transports and timers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from llmgw.contracts.leases import Lease, LeaseStore
from llmgw.contracts.placement import PlacementPolicy
from llmgw.contracts.sinks import UsageSource
from llmgw.control.decide.endpoints import MadeEndpoints, find_endpoints, model_statuses
from llmgw.control.decide.lifecycle import SilenceLimits
from llmgw.control.decide.memory import Memory
from llmgw.control.decide.reconcile import Decision, reconcile
from llmgw.control.decide.snapshot import ClusterSnapshot, Engine, Limits
from llmgw.control.loops.carrying import Carrier, commands_for
from llmgw.control.loops.intake import Intake
from llmgw.control.loops.leadership import RENEW_EVERY_S, TRY_EVERY_S, LeadershipLoop
from llmgw.control.observe import AT_ONCE, Fingerprint, Observer, Stores
from llmgw.control.state.desired import Desired
from llmgw.control.state.inventory import Inventory
from llmgw.control.state.leases import Leadership
from llmgw.control.state.replicas import Replicas
from llmgw.control.state.wake import Wake
from llmgw.domain.catalog import Model
from llmgw.domain.commands import Command
from llmgw.domain.endpoints import Endpoint, ModelStatus
from llmgw.domain.ids import Epoch, NodeId, SessionId
from llmgw.domain.nodes import NodeState
from llmgw.errors import StoreUnavailable
from llmgw.simulate.events import VirtualTime

T = TypeVar("T")

#: Below the silence that counts. Nobody looks more often at who has been heard of.
HEARTBEAT_S = 14.0
#: In so many passes once, what was taken over from the one before is compared with a fresh look.
COMPARED = 16


class SharedLease:
    """A lease row with its own clock, which can be taken away."""

    name = "simulated"

    def __init__(self, time: VirtualTime) -> None:
        self.away = False
        self.writers: dict[int, str] = {}  #: term -> holder
        self._time = time
        self._held: Lease | None = None
        self._expires = 0.0

    def acquire(self, holder: str) -> Lease | None:
        self._answer()
        if self._held is not None and self._expires > self._time.now:
            return None
        term = max(self.writers, default=0) + 1
        self.writers[term] = holder
        self._held = Lease(holder=holder, epoch=Epoch(term), term=term, limit_s=10.0)
        self._expires = self._time.now + 15.0
        return self._held

    def renew(self, lease: Lease) -> bool:
        self._answer()
        if self._held != lease or self._expires <= self._time.now:
            return False
        self._expires = self._time.now + 15.0
        return True

    def release(self, lease: Lease) -> None:
        if self._held == lease:
            self._held = None

    def leader(self) -> str | None:
        return self._held.holder if self._held and self._expires > self._time.now else None

    def _answer(self) -> None:
        if self.away:
            raise StoreUnavailable("the simulated store is away")


async def _at_once(function: Callable[[], T], /) -> T:
    return function()


class _Inventory(Inventory):
    """One whose nodes can be heard all at once: a thousand of them each 14 s for a day is a lot."""

    def all_seen(self, sessions: Mapping[NodeId, SessionId], *, now: float) -> None:
        """As `seen` of each of these sessions."""
        nodes, last_seen = self._nodes, self._last_seen
        for node, session in sessions.items():
            record = nodes.get(node)
            if record is not None and record.session == session:
                last_seen[node] = now
                last_seen.move_to_end(node)
                if record.state is not NodeState.READY:
                    self._judge_soon()


class SimServer:
    """One server. A new one with the same name is a restart: it remembers nothing."""

    def __init__(
        self,
        name: str,
        *,
        time: VirtualTime,
        lease_store: LeaseStore,
        engines: Mapping[str, Engine],
        policy: PlacementPolicy,
        usage: UsageSource,
        catalog: Sequence[Model],
        limits: Limits,
    ) -> None:
        self.name = name
        self._inventory = _Inventory(
            limits=SilenceLimits(), drain_limit_s=limits.drain_limit, now=time.now
        )
        self.stores = Stores(
            inventory=self._inventory,
            replicas=Replicas(),
            desired=Desired(),
            leadership=Leadership(),
            wake=Wake(),
            facts={},
            learned={},
        )
        self.intake = Intake(self.stores, time)
        self.sessions: dict[NodeId, SessionId] = {}
        self.carrier = Carrier(self.stores)
        self.passes = 0
        self.snapshot: ClusterSnapshot | None = None
        self.decision = Decision()
        self.endpoints: tuple[Endpoint, ...] = ()
        self.statuses: tuple[ModelStatus, ...] = ()
        self._time = time
        self._policy = policy
        self._made = MadeEndpoints()
        self._memory = Memory()
        self._published: Fingerprint | None = None
        self._looked: Fingerprint | None = None  #: what `snapshot` shows
        self._heard_at = float("-inf")
        self._observer = Observer(
            self.stores,
            engines=engines,
            limits=limits,
            settle_s=30.0,
            usage=usage,
            published=AT_ONCE,
        )
        self._loop = LeadershipLoop(
            self.stores, lease_store, holder=name, clock=time, jitter=lambda: 0.5, call=_at_once
        )
        self.stores.desired.set_catalog(catalog, wall=time.wall())

    @property
    def leads(self) -> bool:
        return self.stores.leadership.lease(self._time.now) is not None

    def try_to_lead(self) -> float:
        """Renew or try to take the lease; return when to do it again."""
        _finish(self._loop.try_once())
        return RENEW_EVERY_S if self.leads else TRY_EVERY_S

    def step_down(self) -> None:
        """Give the lease back, if this server holds it."""
        if self.leads:
            _finish(self._loop.release())

    def hear_silence_end(self) -> None:
        """Let every session that is up show a sign of life: heartbeats, without one event each."""
        if self._time.now - self._heard_at < HEARTBEAT_S:
            return
        self._heard_at = self._time.now
        self._inventory.all_seen(self.sessions, now=self._time.now)

    def hear(self, node: NodeId) -> None:
        """Let a node show a sign of life, if its session is up."""
        if (session := self.sessions.get(node)) is not None:
            self.stores.inventory.seen(node, session, now=self._time.now)

    def take_turn(self, deliver: Callable[[NodeId, tuple[Command, ...]], bool]) -> float | None:
        """Make one pass and publish; return when the next is due without a bell, None for never.

        deliver: hands commands to a node; False if it could not be reached.
        """
        self.passes += 1
        self.hear_silence_end()
        self.stores.wake.reconciler.rung_nowait()
        snapshot = self._look()
        self.decision = reconcile(snapshot, self._policy, self._memory)
        if self.passes % COMPARED == 0 and reconcile(snapshot, self._policy) != self.decision:
            raise AssertionError(f"{self.name} would have decided otherwise without its memory")
        if snapshot.leading and snapshot.settled:
            commands = commands_for(snapshot, self.decision)
            errand = self.carrier.take(snapshot, self.decision, commands)
            self.publish()
            for node, mine in errand.commands.items():
                if deliver(node, mine):
                    self.carrier.delivered(snapshot, node, mine)
            self.carrier.finish(errand)
        else:
            self.publish()
        waits = [
            self.decision.plan.recheck_after_s,
            self._observer.silence_recheck_s,
            self._observer.settles_in_s,
        ]
        return min((wait for wait in waits if wait is not None), default=None)

    def _look(self) -> ClusterSnapshot:
        snapshot = self.snapshot = self._observer.observe(self._time.now)
        self._looked = self._observer.fingerprint(self._time.now)
        return snapshot

    def publish(self) -> None:
        """Find out what routers would be told now, if anything has changed."""
        fingerprint = self._observer.fingerprint(self._time.now)
        is_known = fingerprint == self._published
        if is_known and self.passes % COMPARED:
            return
        self._published = fingerprint
        snapshot = self.snapshot
        if snapshot is None or fingerprint != self._looked:
            snapshot = self._observer.observe(self._time.now)
        if snapshot.settled:
            before = self.endpoints
            self.endpoints = find_endpoints(snapshot, made=self._made)
            if is_known and self.endpoints != before:
                raise AssertionError(f"{self.name} would have overlooked a change of endpoints")
            self.stores.desired.note_withdrawals(self.endpoints, AT_ONCE.serial)
        self.statuses = model_statuses(
            snapshot,
            self._made,
            wake_s=self.stores.wake.wake_s,
            created=self.stores.desired.catalog.created,
        )


def _finish(step: object) -> None:
    """Run a coroutine that never has to wait."""
    try:
        step.send(None)  # type: ignore[attr-defined]
    except StopIteration:
        return
    raise RuntimeError("the simulated leadership waited for something")
