"""Start, show, serve, end: the life of one `llmgw up`."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import anyio
import anyio.abc
import click
import yaml

from llmgw import logs
from llmgw.cli.up.children import Child, ChildEnded
from llmgw.cli.up.plan import UpPlan, plan_up, weight_roots
from llmgw.cli.up.question import QUESTION, ask
from llmgw.cli.up.show import Display, how_to_use, timings
from llmgw.cli.up.watch import Progress, Watcher
from llmgw.config.loading import load_server
from llmgw.config.places import default_state_dir
from llmgw.errors import ConfigError, PermanentError, Problem
from llmgw.plugins import load_registry

_GIVE_UP_S = 6.0  # longer than the first pause after a failure, shorter than the second
_LOOK_EVERY_S = 0.2
_AGENT_LIMIT_S = 75.0  # draining engines, then their grace
_SERVER_LIMIT_S = 40.0


def run_up(
    what: Path | None,
    *,
    once: bool,
    reset: bool,
    listen: str,
    admin_listen: str,
    state_dir: Path | None,
) -> int:
    """Run it all and return the exit code. Raises LlmgwError for what a person must mend."""
    os.umask(0o077)
    logs.configure(level="warning")
    _require("llmgw_agent", "llmgw-agent")
    _require("llmgw_engine_llamacpp", "llmgw-engine-llamacpp[demo]")
    if what is not None and not what.is_file():
        raise ConfigError(str(what), [Problem(path="", message="there is no such file")])
    state = state_dir or default_state_dir(os.environ)
    state.mkdir(parents=True, exist_ok=True)
    with _alone(state):
        if reset:
            _forget(state)
        plan = plan_up(what, state_dir=state, listen=listen, admin_listen=admin_listen)
        if plan.content is not None:
            plan.config.write_text(yaml.safe_dump(dict(plan.content), sort_keys=False))
        # The server would refuse a wrong file as well, but into a log that nobody has open.
        installed = load_registry().installed
        loaded = load_server(plan.config, os.environ, plan.flags, installed=installed)
        roots = weight_roots(loaded.settings.models)
        try:
            return anyio.run(_Up(plan, state, once=once, roots=roots).run)
        except BaseExceptionGroup as group:
            ended = group.subgroup(ChildEnded)
            if ended is None:
                raise
            return _say_ended(ended)


class _Up:
    """The processes, and what this terminal shows of them."""

    def __init__(self, plan: UpPlan, state: Path, *, once: bool, roots: Sequence[str]) -> None:
        log_dir = state / "log"
        self._plan = plan
        self._state = state
        self._once = once
        self._started = time.monotonic()
        self._stages: dict[str, float] = {}
        self._server = Child("server", ["server", *plan.server], log_dir / "server.log")
        self._agent = Child("agent", ["agent", *plan.agent, *roots], log_dir / "agent.log")
        self._base_url = f"http://{plan.flags['listen']}"
        self._admin_url = f"http://{plan.flags['admin_listen']}"
        self._stop = anyio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        async with anyio.create_task_group() as children:
            await children.start(self._server.run)
            await children.start(self._agent.run)
            try:
                async with anyio.create_task_group() as work:
                    work.start_soon(self._obey_signals, work.cancel_scope)
                    await self._serve()
                    work.cancel_scope.cancel()
            finally:
                # Also when a child ended by itself: the other one goes in order.
                with anyio.CancelScope(shield=True):
                    await self._end()
                children.cancel_scope.cancel()
        return self._exit_code

    async def _serve(self) -> None:
        watcher = Watcher(self._admin_url, self._state)
        try:
            with Display() as display:
                progress = await self._wait_ready(watcher, display)
            if self._once:
                await self._ask_once(progress)
                return
            if progress.ready:
                text = how_to_use(self._base_url, f"{self._admin_url}/admin", progress.models)
                click.echo(text)
            await self._stop.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await watcher.aclose()

    async def _wait_ready(self, watcher: Watcher, display: Display) -> Progress:
        moved_at = time.monotonic()
        while True:
            progress = await watcher.look()
            display.show(progress)
            self._note(progress)
            if progress.settled:
                return progress
            if not progress.stands_still:
                moved_at = time.monotonic()
            if self._once and time.monotonic() - moved_at > _GIVE_UP_S:
                self._exit_code = 1
                return progress
            await anyio.sleep(_LOOK_EVERY_S)

    def _note(self, progress: Progress) -> None:
        states = {shard.state for shard in progress.shards}
        for stage, reached in (
            ("server up", progress.server_up),
            ("agent connected", progress.agent_connected),
            ("weights there", bool(states & {"starting", "ready"})),
            ("model ready", bool(progress.ready)),
        ):
            if reached:
                self._stages.setdefault(stage, self._elapsed())

    async def _ask_once(self, progress: Progress) -> None:
        model = next(iter(progress.ready or progress.models), None)
        if self._exit_code or model is None:
            return

        def first_token() -> None:
            self._stages["first token"] = self._elapsed()

        answer = await ask(self._base_url, model.name, first_token)
        self._stages["answer"] = self._elapsed()
        click.echo(f"\n{QUESTION}\n{answer}\n\n{timings(self._stages)}")

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    async def _obey_signals(self, serving: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                serving.cancel()

    async def _end(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with anyio.create_task_group() as ending:
                ending.start_soon(self._kill_at_second_signal, signals)
                await self._agent.stop(_AGENT_LIMIT_S)
                await self._server.stop(_SERVER_LIMIT_S)
                ending.cancel_scope.cancel()

    async def _kill_at_second_signal(self, signals: AsyncIterator[signal.Signals]) -> None:
        async for _ in signals:
            self._agent.kill()
            self._server.kill()


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Hold this machine's one `llmgw up` on a state folder."""
    lock_file = state / "up.lock"
    with lock_file.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise PermanentError(
                f"llmgw up is already running on {state} (pid {lock.read().strip() or 'unknown'}): "
                "use it, stop it, or give another --state-dir, --listen and --admin-listen"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _forget(state: Path) -> None:
    for lock_file in state.glob("agent/shards/*/lock"):
        with lock_file.open("r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PermanentError(
                    f"an engine of an earlier `llmgw up` still runs ({lock_file.parent.name}): "
                    "run `llmgw up` without --reset and end it by Ctrl-C first"
                ) from None
    for kept in state.iterdir():
        if kept.name == "up.lock":
            continue
        if kept.is_dir() and not kept.is_symlink():
            shutil.rmtree(kept)
        else:
            kept.unlink()


def _require(module: str, package: str) -> None:
    if find_spec(module) is None:
        raise PermanentError(
            f"`llmgw up` needs {package}, which is not installed: pip install '{package}'"
        )


def _say_ended(group: BaseExceptionGroup[ChildEnded]) -> int:
    first = group.exceptions[0]
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    for line in first.lines:
        click.echo(line, err=True)
    click.echo(f"llmgw: {first} (log: {first.log_file})", err=True)
    return first.exit_code if first.exit_code in (1, 2) else 1
