"""What `llmgw up` prints: bars while it works, then how to use what it serves."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich import progress as bars
from rich.console import Console

from llmgw.adminapi.fleet import ModelReply, ShardReply
from llmgw.cli.up.watch import Progress

_STATES = {
    "assigned": "ordered",
    "installing": "installing the engine",
    "fetching": "downloading weights",
    "starting": "loading",
    "ready": "ready",
    "backoff": "failed, will try again",
    "failed": "failed",
}


class Display:
    """Bars on a terminal, one line per change elsewhere. Everything goes to stderr."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self._bars = bars.Progress(
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=30),
            bars.DownloadColumn(),
            bars.TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._tasks: dict[str, bars.TaskID] = {}
        self._said: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def show(self, progress: Progress) -> None:
        """Show how far everything is."""
        self._step("server", "started" if progress.server_up else "starting")
        if progress.server_up:
            self._step("agent", "connected" if progress.agent_connected else "starting")
        for shard in progress.shards:
            self._shard(shard)

    def _shard(self, shard: ShardReply) -> None:
        state = _STATES.get(shard.state, shard.state)
        bar = self._tasks.get(shard.id)
        if bar is None:
            bar = self._tasks[shard.id] = self._bars.add_task(shard.id, total=None)
        self._bars.update(
            bar,
            description=f"{shard.id}: {state}",
            completed=shard.progress_done or 0,
            total=shard.progress_total,
        )
        why = f": {shard.message}" if shard.state in ("backoff", "failed") else ""
        self._step(shard.id, state + why)
        if why and shard.hint:
            self._step(f"{shard.id} hint", shard.hint)

    def _step(self, what: str, state: str) -> None:
        if self._said.get(what) != state:
            self._said[what] = state
            self.console.print(f"{what}: {state}", markup=False)


def how_to_use(base_url: str, page_url: str, models: tuple[ModelReply, ...]) -> str:
    """Return what a new user needs next: the base URL, a curl line, a Python line, the page."""
    names = ", ".join(name for model in models for name in (model.name, *model.aliases))
    first = models[0].name if models else "MODEL"
    body = f'{{"model": "{first}", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    message = '{"role": "user", "content": "Hello!"}'
    return f"""
Serving {names} at {base_url}/v1

  curl -N {base_url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'

  python -c 'from openai import OpenAI; print(OpenAI(base_url="{base_url}/v1", api_key="none").chat.completions.create(model="{first}", messages=[{message}]).choices[0].message.content)'

  page:    {page_url}
  look:    llmgw ctl status
  Ctrl-C ends all of it.
"""  # noqa: E501 - lines that people copy


def timings(stages: Mapping[str, float]) -> str:
    """Return one line per stage: how long after the last one, and after the start, in seconds."""
    lines, before = [], 0.0
    for stage, at_s in stages.items():
        lines.append(f"  {stage:<22} {at_s - before:6.1f} s {at_s:8.1f} s")
        before = at_s
    return "\n".join(["  stage                     took    since start", *lines])
