"""Lines: the agent's own, and those of each engine, from the files that its shim keeps.

Engines print anything: bytes that are no text, progress bars that never end a line, lines of
megabytes. Here all of it becomes short lines in order; the raw files keep the bytes.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from llmgw.clock import Clock
from llmgw.contracts.dispatch import LogSource
from llmgw.domain.ids import ShardId
from llmgw.errors import PermanentError
from llmgw.logs import LastLines

AGENT = "agent"  #: the source that is no shard
KEPT_LINES = 400  #: of each engine in memory
HEAD_LINES = 60  #: and of its start, where engines say what is wrong with an option
LINE_LIMIT = 4096  #: characters; the rest of a longer line is cut
_RAW_LIMIT = 4 * LINE_LIMIT  # bytes; a character has at most four
_READ_BYTES = 1 << 18
_BACKLOG_BYTES = 1 << 18  # of what an engine printed before this agent lived
_START_UP_BYTES = 4 << 20  # of eight ranks that say everything, a tenth was seen
_FOLLOW_S = 0.25


class LineAssembler:
    """Turns pieces of output into lines."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._cut = False

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes, oldest first.

        A line that is rewritten with carriage returns counts as its last state. A line over
        the limit is cut, with a mark, and its remainder dropped.
        """
        lines = []
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._append(part)
            lines.append(self._take())
        self._append(rest)
        return lines

    @property
    def unfinished(self) -> str:
        """The present state of a line without an end; "" if there is none."""
        return _text(self._rest, cut=self._cut)

    def _append(self, part: bytes) -> None:
        self._rest += part
        # A carriage return at the very end has overwritten nothing yet: what stands is still seen.
        start = self._rest.rstrip(b"\r").rfind(b"\r") + 1
        if start:
            del self._rest[:start]
            self._cut = False
        if len(self._rest) > _RAW_LIMIT:
            del self._rest[_RAW_LIMIT:]
            self._cut = True

    def _take(self) -> str:
        line = _text(self._rest, cut=self._cut)
        self._rest.clear()
        self._cut = False
        return line


def _text(raw: bytearray, *, cut: bool) -> str:
    text = raw.rstrip(b"\r").decode(errors="replace")
    if cut or len(text) > LINE_LIMIT:
        return text[:LINE_LIMIT] + " […cut]"
    return text


class EngineLog:
    """The output of one shard, followed over all its files. Not safe for several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._head: list[str] = []
        self._assembler = LineAssembler()
        self._first = 0  #: of this incarnation's files
        self._number = 0  #: of the file being read; 0: none yet
        self._offset = 0
        self.count = 0  #: whole lines taken in so far
        self.read_bytes = 0  #: since this object was made; grows while the engine prints

    def begin(self, first: int) -> None:
        """Read from the first file of an incarnation on; what came before is not its output."""
        self._lines.clear()
        self._head.clear()
        self._assembler = LineAssembler()
        self._first, self._number, self._offset = first, first, 0
        # After a long life only its start and its end are of interest.
        newest = max(self._numbers(), default=first)
        size = self._size(newest)
        if newest != first or size > 2 * _BACKLOG_BYTES:
            self._head.extend(self._assembler.feed(self._read(first, 0, _BACKLOG_BYTES)))
            del self._head[HEAD_LINES:]
            self._assembler = LineAssembler()
            self._number, self._offset = newest, max(0, size - _BACKLOG_BYTES)

    def pull(self) -> None:
        """Take in what was printed since the last call."""
        if self._number == 0:
            return
        while True:
            data = self._read(self._number, self._offset, _READ_BYTES)
            if data:
                self._offset += len(data)
                self.read_bytes += len(data)
                self._take(self._assembler.feed(data))
                continue
            later = [number for number in self._numbers() if number > self._number]
            if not later:
                return
            self._number, self._offset = min(later), 0

    def _take(self, lines: list[str]) -> None:
        if len(self._head) < HEAD_LINES:
            self._head.extend(lines[: HEAD_LINES - len(self._head)])
        self._lines.extend(lines)
        self.count += len(lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """The newest whole lines, oldest first."""
        return tuple(self._lines)

    @property
    def unfinished(self) -> str:
        """A line that has not ended yet; "" if there is none."""
        return self._assembler.unfinished

    def start_up(self) -> tuple[str, ...]:
        """Return this incarnation's first lines, many enough to hold all of its start.

        () where that file has been rotated away. May block on a disk.
        """
        return tuple(LineAssembler().feed(self._read(self._first, 0, _START_UP_BYTES)))

    @property
    def head(self) -> tuple[str, ...]:
        return tuple(self._head)

    @property
    def tail(self) -> tuple[str, ...]:
        """The newest lines, the unfinished one included."""
        return (*self._lines, self.unfinished) if self.unfinished else self.lines

    def _numbers(self) -> list[int]:
        try:
            names = [path.stem for path in self._folder.iterdir() if path.suffix == ".log"]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdigit())

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.log"

    def _size(self, number: int) -> int:
        try:
            return self._path(number).stat().st_size
        except OSError:
            return 0

    def _read(self, number: int, offset: int, limit: int) -> bytes:
        try:
            descriptor = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return b""
        try:
            return os.pread(descriptor, limit, offset)
        finally:
            os.close(descriptor)


class AgentLog(LastLines):
    """The agent's own last lines, counted so that a reader knows which it has had."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self.count += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    count: int  #: whole lines since the beginning
    lines: tuple[str, ...]  #: the last of them
    unfinished: str = ""

    def after(self, count: int) -> tuple[str, ...]:
        """Return the whole lines after the first `count`, as far as they are kept."""
        new = min(self.count - count, len(self.lines))
        return self.lines[len(self.lines) - new :] if new > 0 else ()


class LogBook:
    """Every log of the node, by the names that the node itself gives them."""

    def __init__(self, *, agent: AgentLog, clock: Clock) -> None:
        self._agent = agent
        self._clock = clock
        self._engines: dict[str, tuple[str, EngineLog]] = {}

    def add(self, shard: ShardId, description: str, log: EngineLog) -> None:
        self._engines[shard] = (description, log)

    def discard(self, shard: ShardId) -> None:
        self._engines.pop(shard, None)

    def sources(self) -> tuple[LogSource, ...]:
        """Return what can be read now, the agent first."""
        own = LogSource(name=AGENT, description="the agent itself", lines=len(self._agent.lines))
        engines = (
            LogSource(name=shard, description=description, lines=len(log.tail))
            for shard, (description, log) in sorted(self._engines.items())
        )
        return (own, *engines)

    async def read(self, source: str, *, lines: int, follow: bool) -> AsyncIterator[str]:
        """Yield the last lines, then new ones for ever if `follow`.

        A line without an end is shown as it stands, and again when it changed. Raises
        PermanentError naming the sources if there is none of this name. A reader that is too
        slow misses lines; nothing ever waits for it.
        """
        seen = self._snapshot(source)
        shown = [*seen.lines, seen.unfinished] if seen.unfinished else list(seen.lines)
        for line in shown[max(0, len(shown) - lines) :]:
            yield line
        while follow:
            await self._clock.sleep(_FOLLOW_S)
            try:
                now = self._snapshot(source)
            except PermanentError:
                return  # the shard is assigned no more
            for line in now.after(seen.count):
                yield line
            if now.unfinished not in ("", seen.unfinished):
                yield now.unfinished
            seen = now

    def _snapshot(self, source: str) -> _Snapshot:
        if source == AGENT:
            return _Snapshot(count=self._agent.count, lines=tuple(self._agent.lines))
        if source not in self._engines:
            names = ", ".join(item.name for item in self.sources())
            raise PermanentError(f"no log {source!r} on this node; it has: {names}")
        log = self._engines[source][1]
        log.pull()
        return _Snapshot(count=log.count, lines=log.lines, unfinished=log.unfinished)
