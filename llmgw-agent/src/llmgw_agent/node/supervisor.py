"""Runs every assigned shard, takes over what an earlier agent left, ends orphans. A shell."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus

from llmgw.domain.ids import ShardId
from llmgw.logs import get_logger
from llmgw_agent.node import processes
from llmgw_agent.node.assignments import Assigned, Assignments
from llmgw_agent.node.durable import DiskFull
from llmgw_agent.node.hands import Hands, NodeHands
from llmgw_agent.node.host import Host
from llmgw_agent.node.logs import LogBook
from llmgw_agent.node.processes import Process
from llmgw_agent.node.runner import Runner, Voice
from llmgw_agent.node.shardfolder import LaunchRecord, ShardFolder

log = get_logger(__name__)

_TAKE_OVER_S = 10.0  # the first registration waits this long at most for adoption
_ORPHAN_S = 30.0
_ORPHAN_LOOK_S = 10.0
_RUNNER_PAUSE_S = 5.0


class Supervisor:
    """Makes the node agree with its assignments."""

    def __init__(
        self,
        *,
        host: Host,
        assignments: Assignments,
        shards: Path,
        voice: Voice,
        logs: LogBook,
        hands: Callable[[Host, ShardFolder, Assigned], Hands] | None = None,
    ) -> None:
        """shards: the folder of shards' folders. hands: how a shard's hands are made."""
        self._host = host
        self._assignments = assignments
        self._shards = shards
        self._voice = voice
        self._logs = logs
        self._make_hands = hands or _node_hands
        self._runners: dict[ShardId, Runner] = {}
        self._hands: dict[ShardId, Hands] = {}
        self._changed = anyio.Event()
        assignments.on_change = self._on_change

    def _on_change(self) -> None:
        self._changed.set()
        for runner in self._runners.values():
            runner.nudge()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, which leaves every engine running.

        Starts once it is known of each shard whether its engine runs.
        """
        self._shards.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._assign_unknown()
        async with anyio.create_task_group() as group:
            await self._start_runners(group)
            with anyio.move_on_after(_TAKE_OVER_S):
                for runner in tuple(self._runners.values()):
                    await runner.taken_over.wait()
            group.start_soon(self._end_orphans)
            task_status.started()
            while True:
                await self._changed.wait()
                self._changed = anyio.Event()
                await self._start_runners(group)

    def is_idle(self) -> bool:
        """Whether no shard is assigned and nothing of one is left."""
        return not self._runners and not self._assignments.all()

    def pids(self) -> frozenset[int]:
        """Return every process of this agent's engines, as last seen."""
        return frozenset(
            process.pid for hands in self._hands.values() for process in hands.incarnation.known
        )

    async def _assign_unknown(self) -> None:
        """Assign what has a folder but no assignment, so that a lost file stops no engine.

        Whether it should run is for a server to say, which sees it in the registration.
        """
        async with self._assignments.turn:
            for record in await anyio.to_thread.run_sync(self._unknown):
                shard = record.shard.id
                log.warning("shard without an assignment taken over", shard=shard)
                try:
                    await self._assignments.put(Assigned(spec=record.shard, epoch=record.epoch))
                except DiskFull as error:
                    log.warning("it waits for the next start", shard=shard, reason=str(error))

    def _unknown(self) -> list[LaunchRecord]:
        """Return what has been started without an assignment, and remove what never was."""
        records = []
        for path in self._shards.iterdir():
            if self._assignments.get(ShardId(path.name)) is not None:
                continue
            folder = ShardFolder(path)
            record = folder.record()
            if record is None:
                folder.remove()
            else:
                records.append(record)
        return records

    async def _start_runners(self, group: TaskGroup) -> None:
        missing = {
            shard: assigned
            for shard, assigned in self._assignments.all().items()
            if shard not in self._runners
        }
        if not missing:
            return
        for shard, hands in (await anyio.to_thread.run_sync(self._begin, missing)).items():
            assigned = missing[shard]
            self._hands[shard] = hands
            self._runners[shard] = self._runner(assigned, hands)
            self._logs.add(shard, _description(assigned), hands.incarnation.log)
            group.start_soon(self._keep_running, shard)
            group.start_soon(self._runners[shard].keep_adapted)
        if any(shard not in self._runners for shard in missing):
            group.start_soon(self._try_again)

    def _begin(self, assigned: Mapping[ShardId, Assigned]) -> dict[ShardId, Hands]:
        """Return hands for each shard whose folder can be had. Blocks: a new one gets its key."""
        made = {}
        for shard, item in assigned.items():
            try:
                made[shard] = self._make_hands(self._host, ShardFolder(self._shards / shard), item)
            except (DiskFull, OSError) as error:
                log.warning("shard cannot be begun", shard=shard, reason=str(error))
        return made

    def _runner(self, assigned: Assigned, hands: Hands) -> Runner:
        shard = assigned.spec.id
        return Runner(
            assigned=assigned,
            order=lambda: self._assignments.get(shard),
            hands=hands,
            voice=self._voice,
            clock=self._host.clock,
            node=self._host.node,
            address=self._host.address,
            forget=lambda: self._forget(shard),
        )

    async def _forget(self, shard: ShardId) -> None:
        async with self._assignments.turn:
            await self._assignments.remove(shard)

    async def _keep_running(self, shard: ShardId) -> None:
        try:
            await self._runners[shard].run()
        except OSError as error:
            # No file can be opened, say: nothing is known of the engine, so nothing is done to it.
            log.warning(
                "shard cannot be supervised now, its engine is left alone",
                shard=shard,
                reason=str(error),
                again_in_s=_RUNNER_PAUSE_S,
            )
            await self._host.clock.sleep(_RUNNER_PAUSE_S)
        except Exception:
            # One shard's bug must not end the agent, and with it the care for all others.
            log.exception("shard cannot be supervised", shard=shard, again_in_s=_RUNNER_PAUSE_S)
            await self._host.clock.sleep(_RUNNER_PAUSE_S)
        finally:
            self._runners.pop(shard, None)
            self._hands.pop(shard, None)
            self._logs.discard(shard)
            self._changed.set()

    async def _try_again(self) -> None:
        await self._host.clock.sleep(_RUNNER_PAUSE_S)
        self._changed.set()

    async def _end_orphans(self) -> None:
        """Kill what carries this agent's cookie but has no folder, 30 s after it was first seen."""
        since: dict[Process, float] = {}
        while True:
            try:
                orphans = await anyio.to_thread.run_sync(self._orphans)
            except OSError as error:
                log.debug("orphans cannot be looked for", reason=str(error))
                await self._host.clock.sleep(_ORPHAN_LOOK_S)
                continue
            now = self._host.clock.monotonic()
            since = {process: since.get(process, now) for process in orphans}
            for process, first in since.items():
                if now - first >= _ORPHAN_S and processes.send_signal(process, signal.SIGKILL):
                    log.warning("orphaned engine process killed", pid=process.pid)
            await self._host.clock.sleep(_ORPHAN_LOOK_S)

    def _orphans(self) -> frozenset[Process]:
        ours = f"{self._host.agent_uid}/"
        return frozenset(
            entry.process
            for entry in processes.process_table().values()
            if entry.cookie is not None
            and entry.cookie.startswith(ours)
            and ShardId(entry.cookie.removeprefix(ours)) not in self._assignments.all()
        )


def _node_hands(host: Host, folder: ShardFolder, assigned: Assigned) -> Hands:
    return NodeHands(host=host, folder=folder, assigned=assigned)


def _description(assigned: Assigned) -> str:
    return f"{assigned.spec.engine} serving {assigned.spec.model}"
