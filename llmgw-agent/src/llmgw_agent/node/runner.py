"""Runs one shard: does what its phase says, tells what came of it, reports. A shell."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol, assert_never

import anyio

from llmgw.clock import Clock
from llmgw.domain.commands import LoraAdapter
from llmgw.domain.ids import NodeId, ShardId
from llmgw.domain.loads import EngineLoad
from llmgw.domain.replicas import Progress, Shard
from llmgw.domain.reports import ShardReport
from llmgw.domain.secret import Secret
from llmgw.logs import get_logger
from llmgw_agent.node import processes
from llmgw_agent.node.adoption import Remains
from llmgw_agent.node.assignments import Assigned
from llmgw_agent.node.durable import DiskFull
from llmgw_agent.node.hands import Hands, TakenOver
from llmgw_agent.node.host import StepFailed
from llmgw_agent.node.race import first_of
from llmgw_agent.node.shardfolder import ShimAlive
from llmgw_agent.node.shards import (
    Event,
    Failed,
    Found,
    Life,
    Looked,
    Order,
    Ordered,
    Passed,
    Phase,
    Rediscovered,
    StillThere,
    advance,
    resume,
    shard_state,
)

log = get_logger(__name__)

_WARM_LOOKS_S = (0.1, 1.0)  # between looks at a loading engine: at first, and after a while
_SERVING_LOOK_S = 5.0
_REPORT_PROGRESS_S = 1.0
_DISK_RETRY_S = 5.0
_ADAPT_AGAIN_S = 30.0  # after an adapter could not be had
_TIMELINE = {
    Phase.ENDING: "engine stopping",
    Phase.DONE: "engine stopped",
    Phase.SLEEPING: "engine sleeps",
    Phase.WAKING: "engine waking",
}


class Voice(Protocol):
    """Where a runner's words go: the outbox."""

    def publish(self, report: ShardReport) -> None: ...

    def retire(self, report: ShardReport) -> None: ...

    def measured(self, shard: ShardId, load: EngineLoad | None) -> None: ...


class Runner:
    """Drives one assigned shard until it is done."""

    def __init__(
        self,
        *,
        assigned: Assigned,
        order: Callable[[], Assigned | None],
        hands: Hands,
        voice: Voice,
        clock: Clock,
        node: NodeId,
        address: str,
        forget: Callable[[], Awaitable[None]],
    ) -> None:
        """order: the newest assignment. forget: removes it; may raise DiskFull."""
        self._assigned = assigned
        self._order = order
        self._hands = hands
        self._voice = voice
        self._clock = clock
        self._node = node
        self._address = address
        self._forget = forget
        self._changed = anyio.Event()
        self._progress: Progress | None = None
        self._reported_at = 0.0
        self._life = Life(spec=assigned.spec)
        self._serving: int | None = None  #: the incarnation that serves
        self._adapt = anyio.Event()
        self._is_over = False
        self.taken_over = anyio.Event()  #: set once it is known how the shard was left

    def nudge(self) -> None:
        """The assignments have changed, and with them perhaps this shard's.

        Others' changes interrupt nothing: a first request may take minutes of compilation.
        """
        if self._order() != self._assigned:
            self._changed.set()
            self._adapt.set()

    async def keep_adapted(self) -> None:
        """Let the engine have the adapters of the newest assignment, until the runner is over.

        Beside everything else, since one may have to be fetched first.
        """
        adapted: tuple[int, tuple[LoraAdapter, ...]] | None = None
        while not self._is_over:
            self._adapt = anyio.Event()
            assigned, serving = self._order(), self._serving
            if assigned is not None and serving is not None:
                wanted = (serving, assigned.spec.adapters)
                if wanted != adapted or self._adapter_problems():
                    await self._hands.adapt(assigned.spec)
                    adapted = wanted
                    self._report(self._life)
            await first_of(self._adapt.wait, self._wait_adapt_again)

    async def _wait_adapt_again(self) -> None:
        if self._adapter_problems():
            await self._clock.sleep(_ADAPT_AGAIN_S)
        else:
            await anyio.sleep_forever()

    def _adapter_problems(self) -> list[str]:
        return [item.problem for item in self._hands.incarnation.adapters if item.problem]

    async def run(self) -> None:
        """Return when the shard was stopped and nothing of it is left."""
        try:
            await self._run()
        finally:
            self._is_over = True
            self._adapt.set()

    async def _run(self) -> None:
        spec = self._assigned.spec
        found = _found(await self._hands.take_over(spec))
        life = resume(spec, found, self._clock.monotonic(), seed=random.random())  # noqa: S311 -- jitter
        life = advance(life, self._present_order(), Ordered(), self._clock.monotonic())
        if found.runs:
            log.info("engine adopted", shard=spec.id, pid=self._pid())
        self._move_to(life)
        self._report(life)
        self.taken_over.set()
        while life.phase is not Phase.DONE:
            event = await self._work(life)
            before = life
            life = advance(
                life,
                self._present_order(),
                event,
                self._clock.monotonic(),
                seed=random.random(),  # noqa: S311 -- jitter
            )
            self._move_to(life)
            if life.phase is not before.phase:
                self._progress = None
                self._tell(before, life, event)
                if life.phase is Phase.SERVING:
                    await self._mark_ready(life)
            if isinstance(event, Looked):
                self._voice.measured(spec.id, event.load)
            if life.phase is not Phase.DONE:  # which is told when nothing is left, folder included
                self._report(life)
        await self._finish(life)

    def _move_to(self, life: Life) -> None:
        self._life = life
        # An adopted engine is told nothing before it has answered as the one that it is taken for.
        is_proven = life.phase is Phase.SERVING and life.ready_at is not None
        serving = life.incarnation if is_proven else None
        if serving != self._serving:
            self._serving = serving
            self._adapt.set()

    def _present_order(self) -> Order:
        self._assigned = self._order() or self._assigned
        return Order(intent=self._assigned.intent)

    # --- one phase ----------------------------------------------------------------------------

    async def _work(self, life: Life) -> Event:
        match life.phase:
            case Phase.WAITING:
                return await first_of(self._wait_ordered, lambda: self._wait_backoff(life))
            case Phase.RESOLVING:
                return await first_of(
                    self._wait_ordered,
                    lambda: self._step(
                        self._hands.resolve(life, self._reporter(life, "installing", "packages"))
                    ),
                )
            case Phase.FETCHING:
                return await first_of(
                    self._wait_ordered,
                    lambda: self._step(
                        self._hands.fetch(life, self._reporter(life, "fetching weights", "bytes"))
                    ),
                )
            case Phase.LAUNCHING:
                # Not interrupted: half a launch would have to be found and undone.
                return await self._launch(life)
            case Phase.WARMING | Phase.SERVING:
                return await first_of(
                    self._wait_ordered, lambda: self._wait_ended(life), lambda: self._look(life)
                )
            case Phase.DOZING:
                self._voice.measured(life.spec.id, None)
                level = self._assigned.sleep_level
                return await first_of(
                    self._wait_ordered,
                    lambda: self._wait_ended(life),
                    lambda: self._step(self._hands.fall_asleep(life, level)),
                )
            case Phase.SLEEPING:
                return await first_of(self._wait_ordered, lambda: self._wait_ended(life))
            case Phase.WAKING:
                return await first_of(
                    self._wait_ordered,
                    lambda: self._wait_ended(life),
                    lambda: self._step(self._hands.wake_up(life)),
                )
            case Phase.ENDING:
                await self._hands.end(life, self._assigned)
                return Passed()
            case Phase.CLEARING:
                self._voice.measured(life.spec.id, None)
                return Passed() if await self._hands.clear(life) else StillThere()
            case Phase.HALTED | Phase.DONE:
                return await self._wait_ordered()
            case _:
                assert_never(life.phase)

    async def _launch(self, life: Life) -> Event:
        try:
            return await self._step(self._hands.launch(life, self._assigned))
        except ShimAlive:
            log.info("engine was started already", shard=life.spec.id)
            return Rediscovered(found=_found(await self._hands.take_over(life.spec)))

    async def _wait_ordered(self) -> Event:
        await self._changed.wait()
        self._changed = anyio.Event()
        return Ordered()

    async def _wait_backoff(self, life: Life) -> Event:
        await self._clock.sleep(life.retry_at - self._clock.monotonic())
        return Passed()

    async def _wait_ended(self, life: Life) -> Event:
        return Failed(failure=await self._hands.wait_ended(life))

    async def _look(self, life: Life) -> Event:
        if life.phase is Phase.SERVING and life.bad_looks == 0:
            await self._clock.sleep(_SERVING_LOOK_S)
        elif life.ready_at is not None or life.phase is Phase.WARMING:
            # Often at first, since small models load in a blink; then once a second.
            waited = self._clock.monotonic() - life.moved_at
            await self._clock.sleep(min(_WARM_LOOKS_S[1], max(_WARM_LOOKS_S[0], waited / 10)))
        return await self._hands.look(life)

    async def _step(self, work: Awaitable[None]) -> Event:
        try:
            await work
        except StepFailed as error:
            return Failed(failure=error.failure)
        return Passed()

    async def _mark_ready(self, life: Life) -> None:
        try:
            await self._hands.mark_ready(life)
        except (DiskFull, OSError) as error:
            # Without the mark the next agent warms it up once more, and no worse.
            log.warning("readiness cannot be kept", shard=life.spec.id, reason=str(error))

    # --- what is told -------------------------------------------------------------------------

    def _reporter(self, life: Life, what: str, unit: str) -> Callable[[float, float | None], None]:
        def report(done: float, total: float | None) -> None:
            self._progress = Progress(what=what, done=done, total=total, unit=unit)
            now = self._clock.monotonic()
            if now - self._reported_at >= _REPORT_PROGRESS_S:
                self._reported_at = now
                self._report(life)

        return report

    def _report(self, life: Life) -> None:
        self._voice.publish(self._report_of(life))

    def _report_of(self, life: Life) -> ShardReport:
        spec = life.spec
        own = self._hands.incarnation
        state = own.state
        serves = own.record is not None and own.record.port is not None and state is not None
        return ShardReport(
            shard=Shard(
                id=spec.id,
                replica=spec.replica,
                node=self._node,
                rank=spec.rank,
                state=shard_state(
                    life,
                    Order(intent=self._assigned.intent),
                    installing=life.phase is Phase.RESOLVING and self._progress is not None,
                ),
                devices=spec.devices,
                ports=spec.ports,
                pid=state.pid if state else None,
                started_at=processes.started_at(state.main) if state else None,
                incarnation=life.incarnation,
                restarts=life.restarts,
                failure=life.failure,
                progress=self._progress,
                retry_in_s=self._retry_in(life),
            ),
            spec=replace(spec, adapters=self._assigned.spec.adapters),
            epoch=self._assigned.epoch,
            url=_url(self._address, spec.ports[0]) if serves else None,
            credential=Secret(own.secret) if serves else None,
            memory=own.memory,
            adapters=own.adapters if life.phase is Phase.SERVING else (),
        )

    def _retry_in(self, life: Life) -> float | None:
        if life.phase is not Phase.WAITING or not life.failures:
            return None
        return max(0.0, round(life.retry_at - self._clock.monotonic(), 1))

    def _tell(self, before: Life, life: Life, event: Event) -> None:
        shard = life.spec.id
        if isinstance(event, Failed):
            log.warning(
                "engine failed",
                shard=shard,
                cause=event.failure.cause,
                reason=event.failure.message,
                exit_code=event.failure.exit_code,
                retry_in_s=round(max(0.0, life.retry_at - self._clock.monotonic()), 1),
            )
        elif life.phase is Phase.SERVING:
            log.info("engine ready", shard=shard, pid=self._pid(), incarnation=life.incarnation)
        elif (event_name := _TIMELINE.get(life.phase)) is not None:
            log.info(event_name, shard=shard)
        elif isinstance(event, Looked) and life.failure is not before.failure and life.failure:
            log.warning("engine given up", shard=shard, reason=life.failure.message)

    def _pid(self) -> int | None:
        state = self._hands.incarnation.state
        return state.pid if state else None

    async def _finish(self, life: Life) -> None:
        """Forget the shard: its folder first, so that a crash in between leaves an order to stop."""
        await self._hands.forget()
        while True:
            try:
                await self._forget()
                break
            except DiskFull as error:
                log.warning("assignment cannot be removed yet", reason=str(error))
                await self._clock.sleep(_DISK_RETRY_S)
        self._voice.retire(self._report_of(life))


def _found(taken: TakenOver) -> Found:
    record = taken.record
    if record is None:
        return Found()
    survived = taken.remains is not Remains.GONE
    return Found(
        runs=taken.remains is Remains.RUNNING,
        was_ready=taken.was_ready,
        asleep=taken.asleep,
        ended=taken.failure,
        incarnation=record.run,
        restarts=record.restarts,
        failures=record.failures if survived else 0,
        failure=record.failure,
        options=record.options,
    )


def _url(address: str, port: int) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}"
