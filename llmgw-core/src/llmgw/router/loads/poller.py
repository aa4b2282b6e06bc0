"""Asks engines how they are, off the request path, and tells the selector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskGroup, TaskStatus

from llmgw.clock import Clock
from llmgw.config.server import HealthChecks
from llmgw.contracts.engine import EngineAdapter, MetricsUnreadable
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId
from llmgw.domain.loads import EngineLoad
from llmgw.logs import get_logger
from llmgw.router.loads.pace import Pace
from llmgw.router.loads.verdicts import Answers, Progress
from llmgw.router.pool import LookFailed, Page
from llmgw.router.selection import EndpointState, Selector

log = get_logger(__name__)

_LOOK_S = 0.5
"""How often new endpoints are looked for and what is due in the selector is done."""
_AWAY_S = 0.5
"""The pause between tries of an address that takes no connections: they cost next to nothing,
requests may be waiting for it, and the tries that it takes to be sure must fit into the ten seconds
that a partition may cost."""
_PAGE_BYTES = 2 * 1024 * 1024
"""An engine's page has about 100 KB; what is larger than this is not one."""
_PAGE_LIMIT_S = 5.0
_INLINE_BYTES = 256 * 1024
"""Up to here a page is read on the loop, 1 ms for 100 KB: a thread would hold the GIL as long."""
_LONGEST_PREFILL_S = 600.0
_HEALTH_BYTES = 64 * 1024


class Get(Protocol):
    """`pool.Looks.get`, as the poller needs it."""

    async def __call__(
        self, endpoint: Endpoint, path: str, *, limit_s: float, most: int, fresh: bool
    ) -> Page: ...


class _Watch:
    """What is remembered between two looks at one endpoint."""

    __slots__ = ("answers", "is_away", "is_checking", "knows_load", "progress", "state")

    def __init__(self, state: EndpointState, settings: HealthChecks) -> None:
        self.state = state
        self.answers = Answers(bad=settings.bad, good=settings.good)
        self.progress = Progress()
        self.is_away = False  #: the last check got no connection
        self.is_checking = False
        self.knows_load: bool | None = None  #: None: no page has been asked for yet


class LoadPoller:
    """One small task per endpoint, so that one that hangs delays no other (C025)."""

    def __init__(
        self,
        selector: Selector,
        adapters: Mapping[str, EngineAdapter],
        settings: HealthChecks,
        clock: Clock,
        *,
        get: Get,
    ) -> None:
        self._selector = selector
        self._adapters = adapters
        self._settings = settings
        self._clock = clock
        self._get = get
        self._watches: dict[EndpointId, _Watch] = {}
        self._suspects: set[EndpointId] = set()
        self._suspected = anyio.Event()
        self._pace = Pace()

    def suspect(self, endpoint: EndpointId) -> None:
        """Look at this endpoint now: a connection to it has just failed. Cheap, repeatable."""
        self._suspects.add(endpoint)
        self._suspected.set()

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Watch every endpoint of the table until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._check_suspects)
            task_status.started()
            while True:
                self._selector.advance(self._clock.monotonic())
                self._watch_newcomers(tasks)
                await self._clock.sleep(_LOOK_S)

    def _watch_newcomers(self, tasks: TaskGroup) -> None:
        for state in self._selector.states():
            watch = self._watches.get(state.endpoint.id)
            if watch is None or watch.state is not state:
                watch = self._watches[state.endpoint.id] = _Watch(state, self._settings)
                tasks.start_soon(self._check_health_often, watch)
                tasks.start_soon(self._read_load_often, watch)
        for id_ in [id_ for id_, watch in self._watches.items() if not self._is_current(watch)]:
            del self._watches[id_]

    async def _wait_turn(self) -> None:
        if delay_s := self._pace.delay_s(self._clock.monotonic()):
            await self._clock.sleep(delay_s)

    def _is_current(self, watch: _Watch) -> bool:
        return self._selector.state(watch.state.endpoint.id) is watch.state

    async def _check_suspects(self) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                await self._suspected.wait()
                self._suspected = anyio.Event()
                suspects, self._suspects = self._suspects, set()
                for id_ in suspects:
                    if (watch := self._watches.get(id_)) is not None:
                        tasks.start_soon(self._check_suspect, watch)

    async def _check_suspect(self, watch: _Watch) -> None:
        """Look until there is a verdict: the next look by the timer may be five seconds away."""
        await self._check_health(watch)
        while watch.is_away and watch.answers.is_answering and self._is_current(watch):
            await self._clock.sleep(_AWAY_S)
            await self._check_health(watch)

    # -- health ----------------------------------------------------------------------------

    async def _check_health_often(self, watch: _Watch) -> None:
        await self._wait_turn()
        while self._is_current(watch):
            await self._check_health(watch)
            is_away = watch.is_away or watch.answers.is_gone
            interval_s = _AWAY_S if is_away else self._settings.interval
            await self._clock.sleep(interval_s)
            await self._wait_turn()

    async def _check_health(self, watch: _Watch) -> None:
        endpoint = watch.state.endpoint
        if endpoint.health_path is None or watch.is_checking:
            return
        watch.is_checking = True
        was = watch.answers.is_answering
        try:
            page = await self._get(
                endpoint,
                endpoint.health_path,
                limit_s=self._settings.timeout,
                most=_HEALTH_BYTES,
                fresh=True,
            )
            watch.is_away = False
            problem = None if page.is_good else f"status {page.status}"
            is_answering = watch.answers.take(page.is_good)
        except LookFailed as error:
            problem = str(error)
            watch.is_away = error.is_away
            if error.is_refused:
                is_answering = watch.answers.refused()
            elif error.is_away:
                is_answering = watch.answers.unreachable()
            else:
                is_answering = watch.answers.take(False)
        finally:
            watch.is_checking = False
        self._selector.set_answering(watch.state, is_answering, is_gone=watch.answers.is_gone)
        if was and not is_answering:
            log.warning("endpoint does not answer", endpoint=endpoint.id, problem=problem)
        elif is_answering and not was:
            log.info("endpoint answers again", endpoint=endpoint.id)

    # -- load ------------------------------------------------------------------------------

    async def _read_load_often(self, watch: _Watch) -> None:
        while self._is_current(watch):
            wanted = self._selector.wants_load(watch.state)
            adapter = self._adapters.get(watch.state.endpoint.engine)
            # Without a balancer that looks at it, a reading serves the watchdog only, and that
            # watches over our own requests.
            if adapter is not None and (wanted or watch.state.in_flight):
                await self._wait_turn()
                await self._read_load(watch, adapter)
            interval_s = self._settings.load_interval if wanted else self._settings.interval
            await self._clock.sleep(interval_s)

    async def _read_load(self, watch: _Watch, adapter: EngineAdapter) -> None:
        endpoint = watch.state.endpoint
        if endpoint.metrics_path is None:
            return
        load: EngineLoad | None = None
        problem: str | None
        try:
            page = await self._get(
                endpoint,
                endpoint.metrics_path,
                limit_s=_PAGE_LIMIT_S,
                most=_PAGE_BYTES,
                fresh=False,
            )
        except LookFailed as error:
            # The last reading is used until it is too old: one slow page is no news.
            self._note(watch, problem=str(error))
            return
        if page.is_good:
            load, problem = await _read(adapter, page.body.decode("utf-8", "replace"))
        else:
            problem = f"status {page.status}"
        self._selector.set_load(watch.state, load)
        self._note(watch, problem=problem)
        if load is not None:
            self._judge_progress(watch, load)

    def _judge_progress(self, watch: _Watch, load: EngineLoad) -> None:
        state = watch.state
        # A prompt that is being computed moves no counter until it is done.
        prefill_s = min(_LONGEST_PREFILL_S, 10 + state.largest_prompt / 500)
        patience_s = max(self._settings.stuck_after, prefill_s)
        is_stuck = watch.progress.is_stuck(load, self._clock.monotonic(), patience_s=patience_s)
        if watch.progress.has_restarted:
            self._selector.restarted(state)
        if is_stuck and not state.is_stuck:
            log.warning(
                "engine runs requests without progress; no new ones are sent there",
                endpoint=state.endpoint.id,
                running=load.running,
                still_s=patience_s,
            )
        elif state.is_stuck and not is_stuck:
            log.info("engine makes progress again", endpoint=state.endpoint.id)
        self._selector.set_stuck(state, is_stuck)

    def _note(self, watch: _Watch, *, problem: str | None) -> None:
        """Say once that an engine's load cannot be known, and once that it can again."""
        if problem is not None and watch.knows_load is not False:
            log.warning(
                "engine load unknown; own counts are used instead",
                endpoint=watch.state.endpoint.id,
                problem=problem,
            )
        elif problem is None and watch.knows_load is False:
            log.info("engine load known again", endpoint=watch.state.endpoint.id)
        watch.knows_load = problem is None


async def _read(adapter: EngineAdapter, page: str) -> tuple[EngineLoad | None, str | None]:
    """Return what the page says, or None and why it says nothing."""
    try:
        if len(page) > _INLINE_BYTES:
            return await anyio.to_thread.run_sync(adapter.read_load, page), None
        return adapter.read_load(page), None
    except MetricsUnreadable as error:
        return None, str(error)
    except Exception as error:  # a plugin's bug must not end the watch
        return None, f"adapter {adapter.name}: {type(error).__name__}: {error}"
