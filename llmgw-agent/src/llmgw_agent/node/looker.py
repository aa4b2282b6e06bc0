"""Looks at one running engine: health, identity, warm-up, load, progress. A shell; decides nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import anyio.to_thread

from llmgw.contracts.engine import EngineAdapter, MetricsUnreadable, Probe
from llmgw.domain.loads import EngineLoad
from llmgw.domain.secret import Secret
from llmgw_agent.node import processes
from llmgw_agent.node.host import Host
from llmgw_agent.node.incarnation import Incarnation
from llmgw_agent.node.probes import Answer, NoAnswer, ask
from llmgw_agent.node.processes import Listener, Process
from llmgw_agent.node.shardfolder import LaunchRecord
from llmgw_agent.node.shards import Life, Looked, Phase

_BUSY_SHARE = 0.5  # of one core


class Looker:
    """Looks at the incarnations of one shard."""

    def __init__(self, *, host: Host) -> None:
        self._host = host
        self._read_bytes = 0
        self._cpu: tuple[float, float] | None = None  #: (time of the look, seconds used by then)

    async def look(self, at: Incarnation, life: Life, adapter: EngineAdapter | None) -> Looked:
        """Look once. Never raises for what an engine does."""
        record = at.record
        if record is None or at.state is None:
            return Looked(healthy=False, why="it was not started")
        at.log.pull()
        grew = at.log.read_bytes != self._read_bytes
        self._read_bytes = at.log.read_bytes
        computing = await anyio.to_thread.run_sync(
            self._survey, at, life.phase is Phase.WARMING, limiter=self._host.threads
        )
        seen = Looked(healthy=False, grew=grew, computing=computing)
        if record.ready is None or record.port is None:
            return replace(seen, healthy=True, warm_up="")  # a rank that serves no HTTP
        try:
            await self._healthy(at, record.ready, record.port)
            if life.ready_at is None and (wrong := await self._wrong(at, record, record.port)):
                return replace(seen, why=wrong, wrong=wrong)
        except NoAnswer as error:
            return replace(seen, why=str(error))
        if life.phase is Phase.SERVING and life.ready_at is None:
            return replace(
                seen, healthy=True
            )  # adopted, and many more are to be: the load can wait
        warm_up = await self._warm_up(at, record) if life.phase is Phase.WARMING else None
        load = await self._load(at, record.port, adapter)
        return replace(seen, healthy=True, warm_up=warm_up, load=load)

    def _survey(self, at: Incarnation, fresh: bool) -> bool:
        """Remember the tree; return whether it has used half a core since the last look."""
        # Of an engine that is still coming up, processes of a moment ago must be seen.
        table = processes.process_table() if fresh else self._host.table()
        at.known = at.tree(table)
        now = self._host.clock.monotonic()
        used = sum(processes.cpu_seconds(process) for process in at.known)
        before, self._cpu = self._cpu, (now, used)
        return before is not None and used - before[1] > _BUSY_SHARE * (now - before[0])

    async def _healthy(self, at: Incarnation, probe: Probe, port: int) -> None:
        answer = await self._ask(at, port, probe)
        if not answer.is_good:
            raise NoAnswer(f"{probe.path} says {answer.status}")

    async def _wrong(self, at: Incarnation, record: LaunchRecord, port: int) -> str:
        """Return why it is not our engine with our model that answers, "" if it is.

        Raises NoAnswer where that cannot be told yet.
        """
        found = await anyio.to_thread.run_sync(
            self._listener, port, at.known, limiter=self._host.threads
        )
        if at.state is None or not processes.is_alive(at.state.main):
            raise NoAnswer("it has just ended")  # and its socket with it: that proves nothing
        if found is Listener.FOREIGN:
            return f"port {port} is answered by a process that is not this engine's"
        if found is Listener.NOBODY:
            raise NoAnswer(f"nobody listens on port {port}")
        if not record.expect_models:
            return ""
        answer = await self._ask(at, port, Probe(path="/v1/models"))
        if not answer.is_good:
            raise NoAnswer(f"/v1/models says {answer.status}")
        listed = _model_names(answer.body)
        missing = [name for name in record.expect_models if name not in listed]
        if not missing:
            return ""
        return f"the engine serves {', '.join(sorted(listed)) or 'nothing'}, not {missing[0]}"

    def _listener(self, port: int, tree: frozenset[Process]) -> Listener:
        address = self._host.address
        found = processes.listener(port, address, tree, self._host.sockets())
        # That it was not ours a moment ago says nothing: it may have begun to listen since.
        return found if found is Listener.OURS else processes.listener(port, address, tree)

    async def _warm_up(self, at: Incarnation, record: LaunchRecord) -> str:
        problem = ""
        for probe in record.warm_up:
            try:
                answer = await self._ask(at, record.port or 0, probe)
            except NoAnswer as error:
                problem = str(error)
                continue
            if answer.is_good:
                return ""
            problem = f"{probe.path} says {answer.status}: {answer.text()[:300]}"
        return problem

    async def _load(
        self, at: Incarnation, port: int, adapter: EngineAdapter | None
    ) -> EngineLoad | None:
        if adapter is None or adapter.traits.metrics_path is None:
            return None
        try:
            answer = await self._ask(
                at, port, Probe(path=adapter.traits.metrics_path, timeout_s=5.0)
            )
            return adapter.read_load(answer.text()) if answer.is_good else None
        except (NoAnswer, MetricsUnreadable):
            return None

    async def _ask(self, at: Incarnation, port: int, probe: Probe) -> Answer:
        return await ask(self._host.address, port, probe, Secret(at.secret))


def _model_names(body: bytes) -> frozenset[str]:
    """Return every name in a model list, aliases included. Raises NoAnswer if it is none."""
    try:
        entries = json.loads(body)["data"]
        names = {str(entry["id"]) for entry in entries}
        return frozenset(names.union(*(entry.get("aliases") or () for entry in entries)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoAnswer("/v1/models answers with something else than a list of models") from error
