"""Takes snapshots, has them decided on, and carries the plan to the nodes, again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.contracts.dispatch import Dispatcher
from llmgw.contracts.placement import PlacementPolicy
from llmgw.control.decide.learning import measured_memory
from llmgw.control.decide.memory import Memory
from llmgw.control.decide.reconcile import Decision, reconcile
from llmgw.control.decide.snapshot import ClusterSnapshot
from llmgw.control.loops.carrying import Carrier, commands_for
from llmgw.control.loops.spans import Spans, note_end, note_plan
from llmgw.control.observe import Fingerprint, Observer, Stores
from llmgw.domain.commands import Command
from llmgw.domain.ids import NodeId
from llmgw.domain.plans import (
    Action,
    AdaptReplica,
    DrainReplica,
    Plan,
    Refusal,
    SleepReplica,
    StartReplica,
    StopReplica,
    WakeReplica,
)
from llmgw.errors import TransientError
from llmgw.logs import get_logger

log = get_logger(__name__)

#: Nodes and replicas above which planning is moved to a thread; below, the hop costs more.
OFF_LOOP_ABOVE = 200
#: A storm of reports (a whole fleet reconnects) is answered by one pass, not by one each.
QUIET_S = 0.02

LEARN_EVERY_S = 60.0
#: Commands that are sent, and lines that are written, before others on the loop get their turn.
TURN = 32
#: A plan is made this often although nothing has changed: it costs little, and a mistake in what
#: counts as a change must not last.
BACKSTOP_S = 30.0
#: A pass that failed is tried again after this long.
FAILED_S = 5.0
#: Share of a core that may go into passes that only look at what load asks for.
LOOK_SHARE = 0.01


class EventLog(Protocol):
    """Where the operator's timeline is kept. Must not wait, and must not raise."""

    def record(self, event: str, fields: Mapping[str, str]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """All that is worked out of one snapshot, off the loop where the fleet is large."""

    decision: Decision
    commands: Mapping[NodeId, tuple[Command, ...]]
    learned: Mapping[str, float]


class Reconciler:
    """The one loop that orders. It acts only while this server leads."""

    def __init__(
        self,
        stores: Stores,
        observer: Observer,
        *,
        policy: PlacementPolicy,
        dispatcher: Dispatcher,
        events: EventLog,
        clock: Clock,
        interval_s: float,
        spans: Spans | None = None,
    ) -> None:
        """spans: None: nobody follows from outside what is planned and stopped."""
        self._stores = stores
        self._observer = observer
        self._policy = policy
        self._dispatcher = dispatcher
        self._events = events
        self._clock = clock
        self._interval_s = interval_s
        self._spans = spans
        self._carrier = Carrier(stores)
        self._memory = Memory()
        self._refused: dict[str, Refusal] = {}
        self._learn_at = 0.0
        self._seen: Fingerprint | None = None
        self._due = 0.0
        self.last_plan = Plan()
        self.passes = 0
        self.failed = 0  #: passes that a bug has ended
        self.last_pass_s = 0.0
        self._ended = float("-inf")  #: of the newest planning

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Reconcile at every bell, and at the latest every interval, until cancelled.

        A pass that fails is a bug of ours, told with its traceback and tried again: engines and
        the router of this process go on without a plan, and would not without the process.
        """
        task_status.started()
        while True:
            try:
                wait_s = await self.reconcile_once()
            except Exception:
                log.exception("planning failed", retry_in_s=FAILED_S)
                self._memory, self._seen = Memory(), None  # of a pass that was cut short
                self.failed += 1
                await self._clock.sleep(FAILED_S)
                continue
            if not await self._stores.wake.reconciler.wait_rung(self._clock, wait_s):
                continue
            # Never more than half of the time is spent planning, however loud the bell.
            rest_s = self._ended + self.last_pass_s - self._clock.monotonic()
            await self._clock.sleep(max(QUIET_S, rest_s))

    async def reconcile_once(self) -> float:
        """Make one pass; return after how many seconds the next is due without a bell."""
        self._stores.wake.reconciler.rung_nowait()
        began = self._clock.monotonic()
        fingerprint = self._observer.fingerprint(began)
        if fingerprint == self._seen and began < self._due and not self._must_look(began):
            return self._wait_s(self._due - began)
        self._seen = fingerprint
        await self._observer.catch_up(self._clock)
        snapshot = self._observer.observe(self._clock.monotonic())
        planned = await self._decide(snapshot)
        decision = planned.decision
        self._ended = self._clock.monotonic()
        self.last_pass_s = self._ended - began
        self.passes += 1
        if snapshot.leading and snapshot.settled:
            await self._carry_out(snapshot, planned)
        recheck_s = decision.plan.recheck_after_s
        self._due = began + (BACKSTOP_S if recheck_s is None else min(recheck_s, BACKSTOP_S))
        return self._wait_s(recheck_s)

    def _wait_s(self, recheck_s: float | None) -> float:
        waits = [
            self._interval_s,
            recheck_s,
            self._observer.silence_recheck_s,
            self._observer.settles_in_s,
        ]
        return max(QUIET_S, min(wait for wait in waits if wait is not None))

    def _must_look(self, now: float) -> bool:
        """Return whether it is time to see what the measured load asks for.

        Of a catalog that follows its load every pass may differ; looking takes at most one
        percent of a core, so that a large one is looked at every few seconds.
        """
        if now < self._ended + self.last_pass_s / LOOK_SHARE:
            return False
        return any(
            model.idle_after is not None or any(scale.max > scale.min for scale in model.scales)
            for model in self._stores.desired.catalog.models
        )

    async def _decide(self, snapshot: ClusterSnapshot) -> _Planned:
        size = len(snapshot.nodes) + len(snapshot.replicas)
        learns = snapshot.now >= self._learn_at
        if size <= OFF_LOOP_ABOVE:
            planned = self._plan(snapshot, learns)
        else:
            planned = await anyio.to_thread.run_sync(self._plan, snapshot, learns)
        if learns:
            self._learn_at = snapshot.now + LEARN_EVERY_S
            self._stores.learned.update(planned.learned)
        return planned

    def _plan(self, snapshot: ClusterSnapshot, learns: bool) -> _Planned:
        """Decide and, once in a while, measure what runs, to correct the estimate of a next start."""
        decision = reconcile(snapshot, self._policy, self._memory)
        return _Planned(
            decision=decision,
            commands=commands_for(snapshot, decision),
            learned=measured_memory(snapshot) if learns else {},
        )

    async def _carry_out(self, snapshot: ClusterSnapshot, planned: _Planned) -> None:
        decision = planned.decision
        if self._stores.leadership.lease(self._clock.monotonic()) is None:
            return  # the lease ran out while the plan was made
        errand = self._carrier.take(snapshot, decision, planned.commands)
        self.last_plan = decision.plan
        async with anyio.create_task_group() as group:
            group.start_soon(self._tell, errand.new, decision.plan.unplaced)
            for count, (node, commands) in enumerate(errand.commands.items(), 1):
                group.start_soon(self._send, snapshot, node, commands)
                if count % TURN == 0:
                    await anyio.lowlevel.checkpoint()
        ended = self._carrier.finish(errand)
        if self._spans is not None:
            if errand.new:
                note_plan(self._spans, snapshot, decision.plan, took_s=self.last_pass_s)
            for order in ended:
                took_s = self._clock.monotonic() - order.since
                note_end(self._spans, order, took_s=took_s)

    async def _send(
        self, snapshot: ClusterSnapshot, node: NodeId, commands: Sequence[Command]
    ) -> None:
        try:
            await self._dispatcher.dispatch(node, commands)
        except TransientError as error:
            log.warning("commands not taken, tried again", node=node, why=error)
            return
        except Exception:
            # A plugin's bug must not end what plans for all nodes; the next pass tries again.
            log.exception("commands not taken, tried again", node=node)
            return
        self._carrier.delivered(snapshot, node, commands)

    async def _tell(self, new: Sequence[Action], unplaced: Sequence[Refusal]) -> None:
        """Write the operator's timeline: once per change."""
        for count, action in enumerate(new, 1):
            if count % TURN == 0:
                await anyio.lowlevel.checkpoint()
            event = _EVENTS[type(action)]
            fields = {"replica": str(action.replica), "because": action.because}
            if isinstance(action, StartReplica):
                fields["nodes"] = ",".join(sorted({node for node, _ in action.shards}))
            log.info(event, **fields)
            self._events.record(event, fields)
        refused = {str(item.model): item for item in unplaced}
        for name, refusal in refused.items():
            if self._refused.get(name) != refusal:
                log.warning(
                    "model cannot run now",
                    model=name,
                    code=refusal.parts[0].code if refusal.parts else refusal.code,
                    why=refusal.sentence,
                    hint=refusal.hint,
                )
        self._refused = refused


_EVENTS: dict[type, str] = {
    StartReplica: "replica ordered",
    DrainReplica: "replica drained",
    SleepReplica: "replica put to sleep",
    StopReplica: "replica stopped",
    WakeReplica: "replica woken",
    AdaptReplica: "replica adapted",
}
