"""The node's cache of weights: one folder per ref, whole and verified, or partial and resumable.

    <folder>/<key>/lock         held by whoever downloads, of whichever agent
    <folder>/<key>/entry.json   the ref from the beginning; what came, once it is whole
    <folder>/<key>/data/        belongs to the source that fetches

A lock is the kernel's: the one of a process that is gone never blocks anybody (C051).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from llmgw.contracts.dispatch import WeightsEntry
from llmgw.contracts.weights import FetchContext, WeightSource
from llmgw.domain.ids import ShardId
from llmgw.domain.nodes import CachedWeights
from llmgw.domain.replicas import Failure
from llmgw.domain.secret import Secret
from llmgw.domain.weights import WeightFacts
from llmgw.errors import LlmgwError, PermanentError, TransientError
from llmgw.logs import get_logger
from llmgw_agent.node.durable import write_atomically
from llmgw_agent.node.host import Report, StepFailed
from llmgw_agent.node.weights.faults import cause_of
from llmgw_agent.node.weights.headers import read_facts
from llmgw_agent.node.weights.room import Room

log = get_logger(__name__)

_LOCK_WAIT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """`entry.json`."""

    ref: str
    path: str | None = None  #: what the source returned, relative to `data`; None: not whole yet
    sizes: dict[str, int] | None = None  #: of every file, relative to `data`

    @property
    def size_bytes(self) -> int:
        return sum((self.sizes or {}).values())


class Cancelled(Exception):
    """Nobody wants the download any more."""


class WeightCache:
    """Weights of this node, fetched at most once at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        sources: Mapping[str, WeightSource],
        roots: tuple[Path, ...],
        networks: tuple[str, ...] = (),
        users: Callable[[], Mapping[ShardId, str]],
        room: Room,
        secrets: Mapping[str, Secret],
    ) -> None:
        """users: the ref of every assigned shard."""
        self._folder = folder
        self._sources = sources
        self._roots = roots
        self._networks = networks
        self._users = users
        self._room = room
        self._secrets = secrets
        self._downloads: dict[str, threading.Event] = {}  #: by key; set: give up
        self._one_at_a_time: dict[str, anyio.Lock] = {}
        self._local: dict[str, Path] = {}  #: `path:` refs that were asked for, which nobody copies
        self._facts: dict[str, WeightFacts | None] = {}
        self._known: tuple[CachedWeights, ...] = self._survey()

    def problem(self, ref: str) -> str | None:
        """Return why this ref can never be fetched here; None if it may. No I/O."""
        scheme = ref.partition(":")[0]
        source = self._sources.get(scheme)
        if source is None:
            return f"no source {scheme!r} on this node; it has: {', '.join(sorted(self._sources))}"
        return source.problem(ref)

    def cached(self) -> tuple[CachedWeights, ...]:
        """Return what lies here whole, as of the last change. Never waits."""
        return self._known

    async def ensure(self, ref: str, *, report: Report) -> Path:
        """Return the verified file or folder, fetched if need be. Raises StepFailed."""
        try:
            return await self._ensure(ref, report)
        except LlmgwError as error:
            raise StepFailed(Failure(cause=cause_of(error), message=str(error))) from error

    async def pull(self, ref: str) -> None:
        """Have them here. Raises PermanentError or TransientError."""
        await self._ensure(ref, lambda _done, _total: None)

    async def _ensure(self, ref: str, report: Report) -> Path:
        if problem := self.problem(ref):
            raise PermanentError(f"weights {ref}: {problem}")
        key = _key(ref)
        async with self._one_at_a_time.setdefault(key, anyio.Lock()):
            give_up = self._downloads[key] = threading.Event()
            try:
                path = await anyio.to_thread.run_sync(
                    self._fetch, ref, report, give_up, abandon_on_cancel=True
                )
            except Cancelled:
                raise TransientError(f"weights {ref}: the download was cancelled") from None
            finally:
                # The thread sees it at its next piece, and lets go of the lock then.
                give_up.set()
                self._downloads.pop(key, None)
        if ref.startswith("path:"):
            self._local[ref] = path
        self._facts.pop(ref, None)  # they may be others than last time
        self._known = await anyio.to_thread.run_sync(self._survey)
        return path

    def _fetch(self, ref: str, report: Report, give_up: threading.Event) -> Path:
        source = self._sources[ref.partition(":")[0]]
        home = self._folder / _key(ref)
        data = home / "data"

        def tell(done: float, total: float | None) -> None:
            if give_up.is_set():
                raise Cancelled
            report(done, total)

        context = FetchContext(
            folder=data,
            report=tell,
            reserve=lambda size: self._room.reserve(ref, size, self._make_room),
            secrets=self._secrets,
            roots=self._roots,
            networks=self._networks,
        )
        if source.scheme == "path":
            return source.fetch(ref, context)
        try:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(home / "lock", give_up), self._room.claim(ref):
                entry = _read(home) or _Entry(ref=ref)
                if (whole := _whole(home, entry)) is not None:
                    return whole
                _write(home, _Entry(ref=ref))
                path = source.fetch(ref, context)
                _write(home, _finished(ref, data, path))
                log.info("weights fetched", ref=ref)
                return path
        except OSError as error:
            raise TransientError(f"weights {ref}: {error}") from error

    def _make_room(self, size: int) -> int:
        """Remove what nothing uses, the longest unused first; return the bytes freed."""
        used = set(self._users().values())
        idle = [
            (home.stat().st_mtime, home, entry)
            for home, entry in self._entries()
            if entry.ref not in used and _key(entry.ref) not in self._downloads
        ]
        freed = 0
        for _, home, entry in sorted(idle, key=lambda item: item[0]):
            if freed >= size:
                break
            log.info("weights evicted", ref=entry.ref, bytes=entry.size_bytes)
            freed += _size_of(home)
            _remove(home)
        return freed

    async def entries(self) -> tuple[WeightsEntry, ...]:
        """Return everything in the cache, partial downloads included."""
        return await anyio.to_thread.run_sync(self._list)

    def _list(self) -> tuple[WeightsEntry, ...]:
        users = self._users()
        found = []
        for home, entry in self._entries():
            downloading = _key(entry.ref) in self._downloads
            whole = _whole(home, entry) is not None
            found.append(
                WeightsEntry(
                    ref=entry.ref,
                    size_bytes=entry.size_bytes if whole else _size_of(home),
                    state="ready" if whole else "downloading" if downloading else "partial",
                    used_by=tuple(
                        sorted(shard for shard, ref in users.items() if ref == entry.ref)
                    ),
                )
            )
        return tuple(found)

    async def remove(self, ref: str) -> None:
        """Remove them, and stop a download of them.

        Raises PermanentError if a shard uses them or if they are not the cache's.
        """
        if ref.startswith("path:"):
            raise PermanentError(f"{ref} belongs to the node's owner: remove it there by hand")
        users = sorted(shard for shard, used in self._users().items() if used == ref)
        if users:
            raise PermanentError(f"weights {ref} are used by {', '.join(users)}: stop those first")
        key = _key(ref)
        if (give_up := self._downloads.get(key)) is not None:
            give_up.set()
        home = self._folder / key
        if not home.is_dir():
            raise PermanentError(f"this node has no weights {ref}")
        await anyio.to_thread.run_sync(self._remove_locked, home)
        self._known = await anyio.to_thread.run_sync(self._survey)

    def _remove_locked(self, home: Path) -> None:
        with _locked(home / "lock", threading.Event()):
            _remove(home)

    def _survey(self) -> tuple[CachedWeights, ...]:
        copied = [
            (entry.ref, entry.size_bytes, path)
            for home, entry in self._entries()
            if (path := _whole(home, entry)) is not None
        ]
        local = [(ref, 0, path) for ref, path in sorted(self._local.items())]
        return tuple(
            CachedWeights(ref=ref, size_bytes=size, facts=self._facts_of(ref, path))
            for ref, size, path in (*copied, *local)
        )

    def _facts_of(self, ref: str, path: Path) -> WeightFacts | None:
        if ref not in self._facts:
            self._facts[ref] = read_facts(path)
        return self._facts[ref]

    def _entries(self) -> Iterator[tuple[Path, _Entry]]:
        try:
            homes = sorted(self._folder.iterdir())
        except FileNotFoundError:
            return
        for home in homes:
            if (entry := _read(home)) is not None and home.name == _key(entry.ref):
                yield home, entry


@contextmanager
def _locked(path: Path, give_up: threading.Event) -> Iterator[None]:
    """Hold the lock file; wait for another agent's download, but not past `give_up`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if give_up.wait(_LOCK_WAIT_S):
                    raise Cancelled from None
        yield
    finally:
        os.close(descriptor)


def _key(ref: str) -> str:
    """Return the folder's name: ours, whatever the ref says (C053)."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", ref.partition("#")[0]).strip("-")[:60]
    return f"{readable}-{hashlib.sha256(ref.encode()).hexdigest()[:16]}"


def _read(home: Path) -> _Entry | None:
    try:
        return msgspec.json.decode((home / "entry.json").read_bytes(), type=_Entry)
    except (OSError, msgspec.DecodeError):
        return None


def _write(home: Path, entry: _Entry) -> None:
    write_atomically(home / "entry.json", msgspec.json.encode(entry))


def _finished(ref: str, data: Path, path: Path) -> _Entry:
    files = [item for item in data.rglob("*") if item.is_file() and not item.is_symlink()]
    return _Entry(
        ref=ref,
        path=str(path.relative_to(data)),
        sizes={
            str(item.relative_to(data)): item.stat().st_size
            for item in files
            if item.is_relative_to(path)
        },
    )


def _whole(home: Path, entry: _Entry) -> Path | None:
    """Return where the weights are if every file still has the size that was verified (C052)."""
    if entry.path is None or not entry.sizes:
        return None
    for name, size in entry.sizes.items():
        file = home / "data" / name
        try:
            if file.is_symlink() or file.stat().st_size != size:
                return None
        except OSError:
            return None
    return home / "data" / entry.path


def _size_of(home: Path) -> int:
    return sum(
        item.stat().st_size for item in home.rglob("*") if item.is_file() and not item.is_symlink()
    )


def _remove(home: Path) -> None:
    # The entry first: what is half removed must not pass for whole.
    (home / "entry.json").unlink(missing_ok=True)
    shutil.rmtree(home, ignore_errors=True)
