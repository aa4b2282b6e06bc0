"""The catalog follows its files: on SIGHUP, and when they change on disk.

A bad file changes nothing: the last good configuration stays in force, one clear error says
why, and `Reloads.failed` is a gauge of it. A reload applies wholly or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.config.loading import Loaded
from llmgw.config.server import ServerSettings
from llmgw.errors import ConfigError, LlmgwError, Problem
from llmgw.logs import get_logger

log = get_logger(__name__)

#: Files are looked at this often, and believed when two looks agree: an editor may write in
#: two halves, and fifty saves in a second are one change.
POLL_S = 1.0

Stamp = tuple[tuple[str, int, int, int], ...]


class Reloads:
    """Watches the files of a configuration and hands each good new one on.

    load: reads and checks everything again, as at the start. apply: puts it in force; both may
    raise ConfigError. may_empty: whether files without any model may remove all of them.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        load: Callable[[], Loaded],
        apply: Callable[[Loaded], None],
        clock: Clock,
        may_empty: bool = False,
    ) -> None:
        self._in_force = loaded
        self._load = load
        self._apply = apply
        self._clock = clock
        self._may_empty = may_empty
        self._asked = anyio.Event()
        self._one_at_a_time = anyio.Lock()
        self._done: Stamp | None = None  # of the files that were read last
        self._seen: Stamp | None = None  # at the last look
        self.failed = False  #: whether the newest files are not in force
        self.applied = 0  #: how many have been put in force since the start

    def ask(self) -> None:
        """Read the files now, changed or not."""
        self._asked.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch for ever."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._follow)
            tasks.start_soon(self._obey)
            task_status.started()

    async def look(self) -> None:
        """Look at the files once, and reload if they have changed and keep still."""
        stamp = await self._stamp()
        settled, self._seen = stamp == self._seen, stamp
        if self._done is None:
            self._done = stamp
        elif settled and stamp != self._done:
            self._done = stamp
            await self.reload()

    async def _follow(self, *, task_status: TaskStatus[None]) -> None:
        await self.look()
        task_status.started()
        while True:
            await self._clock.sleep(POLL_S)
            await self.look()

    async def _obey(self) -> None:
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            await self.reload()

    async def reload(self) -> bool:
        """Read, check and apply; return whether the files are in force now. Never raises."""
        async with self._one_at_a_time:
            return await self._reload()

    async def _reload(self) -> bool:
        try:
            loaded = await anyio.to_thread.run_sync(self._load)
            self._refuse_accidents(loaded)
            self._apply(loaded)
        except LlmgwError as error:
            self.failed = True
            log.error("configuration not reloaded", reason=str(error), in_force="the last good one")
            return False
        for setting in _needing_restart(self._in_force.settings, loaded.settings):
            log.warning("setting changes at the next start", setting=setting)
        self._in_force = loaded
        self.failed = False
        self.applied += 1
        log.info(
            "configuration reloaded",
            models=len(loaded.settings.models),
            endpoints=len(loaded.settings.endpoints),
        )
        return True

    def _refuse_accidents(self, loaded: Loaded) -> None:
        if loaded.half_written:
            raise _refusal(loaded.half_written[0], "its last line has no end: half written?")
        had, has = self._in_force.settings, loaded.settings
        gone = len(had.models) + len(had.endpoints) > 0 and not (has.models or has.endpoints)
        if gone and not self._may_empty:
            raise _refusal(
                loaded.files[0] if loaded.files else Path("settings"),
                "it would remove every model; start the server with --allow-empty if that is meant",
            )
        missing = [path for path in self._in_force.files if not path.exists()]
        if missing and not self._may_empty:
            raise _refusal(
                missing[0],
                "it has vanished, which removes nothing by itself; put it back, empty its "
                "`models`, or start the server with --allow-empty",
            )

    async def _stamp(self) -> Stamp:
        settings = self._in_force.settings
        files = [*self._in_force.files]
        return await anyio.to_thread.run_sync(
            lambda: tuple(_stamps({*files, *_listed(settings.catalog_dir)}))
        )


def _stamps(files: set[Path]) -> Iterator[tuple[str, int, int, int]]:
    for path in sorted(files):
        try:
            found = path.stat()  # of what a link leads to: a swapped link is a change
        except OSError:
            yield (str(path), 0, 0, 0)
        else:
            yield (str(path), found.st_mtime_ns, found.st_size, found.st_ino)


def _listed(folder: Path | None) -> list[Path]:
    try:
        return list(folder.iterdir()) if folder else []
    except OSError:
        return []


def _needing_restart(old: ServerSettings, new: ServerSettings) -> list[str]:
    live = {"models", "endpoints", "catalog_dir"}
    return [
        name
        for name in ServerSettings.model_fields
        if name not in live and getattr(old, name) != getattr(new, name)
    ]


def _refusal(path: Path, message: str) -> ConfigError:
    return ConfigError(str(path), [Problem(path="", message=message)])
