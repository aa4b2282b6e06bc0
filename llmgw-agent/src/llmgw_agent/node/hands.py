"""Everything that is done for one shard, phase by phase. A shell; `shards` decides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import anyio.to_thread

from llmgw.contracts.engine import EngineAdapter, EngineExit, EngineHome, ReportsMemory
from llmgw.domain.commands import ShardSpec
from llmgw.domain.replicas import Failure, FailureCause
from llmgw_agent.node import processes
from llmgw_agent.node.adapting import Adapting
from llmgw_agent.node.adoption import Evidence, Remains, judge
from llmgw_agent.node.assignments import Assigned
from llmgw_agent.node.ender import Ender, wait_gone
from llmgw_agent.node.host import Host, Report
from llmgw_agent.node.incarnation import Incarnation
from llmgw_agent.node.launcher import Launcher, step_failed
from llmgw_agent.node.launching import effective_spec
from llmgw_agent.node.logs import EngineLog
from llmgw_agent.node.looker import Looker
from llmgw_agent.node.preflight import Presence, fingerprint, meet
from llmgw_agent.node.race import first_of
from llmgw_agent.node.shardfolder import LaunchRecord, ShardFolder
from llmgw_agent.node.shards import Life, Looked, Phase
from llmgw_agent.node.sleeper import Sleeper

_WORD_LIMIT_S = 2.0  # from an end that was seen to the shim's word about it
_START_LIMIT_S = 15.0
_POLL_S = 0.02
_TAIL_LINES = 100
_STOP_SIGNAL = 15
_GRACE_S = 30.0
# At ready and at the looks after it: what an engine said just before it was ready, the shim of a
# busy node may write down seconds later.
_MEMORY_READINGS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """What was found of a shard when the agent started."""

    remains: Remains
    record: LaunchRecord | None
    was_ready: bool = False  #: the incarnation that runs has been ready
    asleep: bool = False  #: it sleeps, or is on its way there or back
    failure: Failure | None = None  #: why it ended, if it did


class Hands(Protocol):
    """What a runner lets be done."""

    @property
    def incarnation(self) -> Incarnation: ...

    async def take_over(self, spec: ShardSpec) -> TakenOver:
        """Find out in what way the shard was left, and have in hand what still runs."""
        ...

    async def resolve(self, life: Life, report: Report) -> None:
        """Find the engine on this node. Raises StepFailed."""
        ...

    async def fetch(self, life: Life, report: Report) -> None:
        """Have the weights on this node, whole and verified, and all ranks met. Raises StepFailed."""
        ...

    async def launch(self, life: Life, assigned: Assigned) -> None:
        """Return when the engine's main process runs.

        Raises StepFailed, or ShimAlive: an agent that died left a shim that was still on its way
        when this one looked, and it has started the engine meanwhile.
        """
        ...

    async def look(self, life: Life) -> Looked: ...

    async def wait_ended(self, life: Life) -> Failure:
        """Wait until the main process or the shim is gone; return why it ended."""
        ...

    async def end(self, life: Life, assigned: Assigned) -> None:
        """Stop signal, then the grace at most."""
        ...

    async def clear(self, life: Life) -> bool:
        """Leave no process and no device memory behind; False if that cannot be done."""
        ...

    async def fall_asleep(self, life: Life, level: int) -> None:
        """Return once the engine sleeps and its device memory is back. Raises StepFailed."""
        ...

    async def wake_up(self, life: Life) -> None:
        """Return once the engine has its memory again. Raises StepFailed."""
        ...

    async def mark_ready(self, life: Life) -> None:
        """Keep on disk that this incarnation has been ready, and note what memory it took."""
        ...

    async def adapt(self, spec: ShardSpec) -> None:
        """Let the serving engine have the spec's adapters, and note how each is."""
        ...

    async def forget(self) -> None:
        """Remove what the shard had on this node."""
        ...


class NodeHands:
    """Hands on a real node."""

    def __init__(self, *, host: Host, folder: ShardFolder, assigned: Assigned) -> None:
        self._host = host
        self._folder = folder
        self._home = EngineHome()
        self._weights = Path()
        self._launcher = Launcher(host=host, folder=folder)
        self._looker = Looker(host=host)
        self._ender = Ender(host=host)
        self._sleeper = Sleeper(host=host, folder=folder)
        self._adapting = Adapting(host=host)
        self._memory_readings = 0  #: of this incarnation
        self.incarnation = Incarnation(
            cookie=host.cookie(assigned.spec.id),
            log=EngineLog(folder.logs),
            secret=folder.key().reveal(),
        )

    async def take_over(self, spec: ShardSpec) -> TakenOver:
        deadline = self._host.clock.monotonic() + _START_LIMIT_S
        while True:
            remains, was_ready, asleep = await anyio.to_thread.run_sync(
                self._find_out, limiter=self._host.threads
            )
            # The shim of a moment ago: its first word decides.
            if remains is not Remains.STARTING or self._host.clock.monotonic() > deadline:
                break
            await self._host.clock.sleep(_POLL_S)
        record = self.incarnation.record
        self._memory_readings = 0
        ended = remains in (Remains.ENDED, Remains.SHIM_LOST, Remains.LEFTOVERS, Remains.STARTING)
        return TakenOver(
            remains=remains,
            record=record,
            was_ready=was_ready,
            asleep=asleep,
            failure=await self._explain(Life(spec=spec)) if ended else None,
        )

    def _find_out(self) -> tuple[Remains, bool, bool]:
        """Return how the shard was left, whether that incarnation was ready, and whether it sleeps."""
        remains = judge(self._gather())
        record, folder = self.incarnation.record, self._folder
        if record is None:
            return remains, False, False
        return remains, folder.was_ready(record.run), folder.sleep(record.run) is not None

    def _gather(self) -> Evidence:
        own = self.incarnation
        own.record, state, end = self._folder.record(), self._folder.state(), self._folder.exit()
        evidence = Evidence(
            boot_id=self._host.boot_id,
            record=own.record,
            state=state,
            exit=end,
            is_locked=self._folder.is_locked(),
            main=processes.entry_of(state.pid) if state else None,
        )
        if state is not None and state.boot_id == self._host.boot_id:
            own.state = state
            own.log.begin(state.first_log)
        return evidence

    async def resolve(self, life: Life, report: Report) -> None:
        self._adapter(life)
        self._home = await self._host.homes.resolve(life.spec, report)

    async def fetch(self, life: Life, report: Report) -> None:
        spec = life.spec
        self._weights = await self._host.weights.ensure(spec.weights, report=report)
        if spec.world_size > 1:
            own = Presence(
                replica=spec.replica,
                rank=spec.rank,
                engine=f"{spec.engine} {self._home.version or 'of an unknown version'}",
                weights=await anyio.to_thread.run_sync(fingerprint, self._weights),
            )
            await meet(spec, own, clock=self._host.clock, report=report)

    async def launch(self, life: Life, assigned: Assigned) -> None:
        self.incarnation.memory, self.incarnation.adapters = None, ()
        self._memory_readings = 0
        await self._launcher.launch(
            self.incarnation,
            life,
            assigned,
            adapter=self._adapter(life),
            home=self._home,
            weights=self._weights,
        )

    async def look(self, life: Life) -> Looked:
        adapter = self._host.adapters.get(life.spec.engine)
        if life.phase is Phase.SERVING and life.bad_looks == 0:  # not while it is being adopted
            await self._read_memory(life.spec)
        return await self._looker.look(self.incarnation, life, adapter)

    async def wait_ended(self, life: Life) -> Failure:
        if (state := self.incarnation.state) is not None:
            await first_of(lambda: wait_gone(state.main), lambda: wait_gone(state.shim))
        return await self._explain(life)

    async def _explain(self, life: Life) -> Failure:
        own = self.incarnation
        run = own.record.run if own.record else 0
        deadline = self._host.clock.monotonic() + _WORD_LIMIT_S
        while True:
            # Asked before the files are read: a shim writes its last word before it ends.
            shim_lives = own.state is not None and processes.is_alive(own.state.shim)
            state, end = self._folder.state(), self._folder.exit()
            if end is not None and end.run == run:
                return self._classified(life, end.exit_code)
            if state is not None and state.run == run and state.main_exit is not None:
                return self._classified(life, state.main_exit)
            if not shim_lives or self._host.clock.monotonic() > deadline:
                break
            await self._host.clock.sleep(_POLL_S)
        own.log.pull()
        return Failure(
            cause=FailureCause.SHIM_LOST,
            message="the engine's shim ended without a word, and the engine is ended for it",
            log_tail=own.masked(own.log.tail[-_TAIL_LINES:]),
        )

    def _classified(self, life: Life, exit_code: int | None) -> Failure:
        own = self.incarnation
        own.log.pull()
        end = EngineExit(
            exit_code=exit_code,
            head=own.log.head,
            tail=own.log.tail,
            was_ready=life.ready_at is not None,
            spec=effective_spec(life.spec, life.options),
        )
        adapter = self._host.adapters.get(life.spec.engine)
        failure = (
            adapter.explain_exit(end)
            if adapter is not None
            else Failure(cause=FailureCause.UNKNOWN, message=f"ended with exit code {exit_code}")
        )
        return replace(
            failure,
            exit_code=exit_code,
            log_tail=own.masked(failure.log_tail or own.log.tail[-_TAIL_LINES:]),
            command=own.masked(own.record.argv) if own.record else (),
        )

    async def end(self, life: Life, assigned: Assigned) -> None:
        adapter = self._host.adapters.get(life.spec.engine)
        number = adapter.traits.stop_signal if adapter else _STOP_SIGNAL
        grace_s = adapter.traits.stop_grace_s if adapter else _GRACE_S
        if life.spec.stop_grace_s is not None:
            grace_s = life.spec.stop_grace_s
        if assigned.grace_s is not None:
            grace_s = assigned.grace_s
        await self._ender.ask_to_end(self.incarnation, number=number, grace_s=grace_s)

    async def clear(self, life: Life) -> bool:
        cleared = await self._ender.clear(self.incarnation, life.spec.devices)
        if cleared:
            self.incarnation.state = None
            self.incarnation.known = frozenset()
        return cleared

    async def fall_asleep(self, life: Life, level: int) -> None:
        await self._sleeper.fall_asleep(
            self.incarnation, life.spec, adapter=self._adapter(life), level=level
        )

    async def wake_up(self, life: Life) -> None:
        await self._sleeper.wake_up(self.incarnation, life.spec, adapter=self._adapter(life))

    async def mark_ready(self, life: Life) -> None:
        await self._read_memory(life.spec)
        await anyio.to_thread.run_sync(self._folder.mark_ready, life.incarnation)

    async def _read_memory(self, spec: ShardSpec) -> None:
        """Note what the engine's log says by now that it took."""
        adapter = self._host.adapters.get(spec.engine)
        if self._memory_readings >= _MEMORY_READINGS or not isinstance(adapter, ReportsMemory):
            return
        self._memory_readings += 1
        log = self.incarnation.log
        said = await anyio.to_thread.run_sync(lambda: adapter.read_memory(log.start_up()))
        # A reading that finds nothing any more, in a log that was rotated away, takes nothing back.
        self.incarnation.memory = said or self.incarnation.memory

    async def adapt(self, spec: ShardSpec) -> None:
        adapter = self._host.adapters.get(spec.engine)
        self.incarnation.adapters = await self._adapting.adapt(self.incarnation, spec, adapter)

    async def forget(self) -> None:
        await anyio.to_thread.run_sync(self._folder.remove)

    def _adapter(self, life: Life) -> EngineAdapter:
        adapter = self._host.adapters.get(life.spec.engine)
        if adapter is None:
            raise step_failed(
                FailureCause.ENGINE_MISSING,
                f"no plugin on this node knows the engine {life.spec.engine!r}",
                hint=f"install llmgw-engine-{life.spec.engine} beside the agent",
            )
        return adapter
