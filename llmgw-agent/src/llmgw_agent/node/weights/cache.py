"""The node's cache of weights: one folder per ref (`entries`), fetched, listed, shared, removed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from llmgw.contracts.dispatch import WeightsEntry
from llmgw.contracts.weights import FetchContext, WeightSource
from llmgw.domain.ids import ShardId
from llmgw.domain.nodes import CachedWeights
from llmgw.domain.replicas import Failure
from llmgw.domain.secret import Secret
from llmgw.domain.weights import WeightFacts
from llmgw.errors import LlmgwError, PermanentError, TransientError
from llmgw.logs import get_logger
from llmgw_agent.node.durable import DiskFull, write_atomically
from llmgw_agent.node.host import Report, StepFailed
from llmgw_agent.node.telling import on_loop
from llmgw_agent.node.weights.contained import contained
from llmgw_agent.node.weights.entries import (
    Cancelled,
    Entry,
    begin_entry,
    entry_key,
    finish_entry,
    last_change,
    locked,
    locked_nowait,
    mark_used,
    other_users,
    read_entry,
    remove_entry,
    size_of,
    whole,
)
from llmgw_agent.node.weights.faults import Corrupt, cause_of
from llmgw_agent.node.weights.headers import read_facts
from llmgw_agent.node.weights.manifest import (
    describe,
    digest_of,
    encode_manifest,
    manifest_file,
    manifest_path,
    read_manifest,
)
from llmgw_agent.node.weights.peers import PeerWeights
from llmgw_agent.node.weights.room import Room
from llmgw_agent.node.weights.sharing import Shared
from llmgw_agent.node.weights.transfer import clear_partials

log = get_logger(__name__)

_TIDY_EVERY_S = 60.0


@dataclass(slots=True)
class _Download:
    """One that goes on."""

    give_up: threading.Event = field(default_factory=threading.Event)
    done: float = 0.0
    total: float | None = None


class _Rest:
    """Leaves the disk to others for as long as it was read."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._began = time.monotonic()

    def __call__(self) -> None:
        if self._stop.wait(min(1.0, time.monotonic() - self._began)):
            raise Cancelled
        self._began = time.monotonic()


class WeightCache:
    """Weights of this node, fetched at most once at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        sources: Mapping[str, WeightSource],
        roots: tuple[Path, ...],
        networks: tuple[str, ...] = (),
        users: Callable[[], Mapping[ShardId, frozenset[str]]],
        room: Room,
        secrets: Mapping[str, Secret],
        agent: str,
        peers: PeerWeights | None = None,
    ) -> None:
        """users: the refs of every assigned shard. agent: its uid, for others on the same folder.

        peers: asked before a ref's own source.
        """
        self._folder = folder
        self._agent = agent
        self._sources = sources
        self._roots = roots
        self._networks = networks
        self._users = users
        self._room = room
        self._secrets = secrets
        self._peers = peers
        self._downloads: dict[str, _Download] = {}  #: by key
        self._changed = anyio.Event()
        self._one_at_a_time: dict[str, anyio.Lock] = {}
        self._local: dict[str, Path] = {}  #: `path:` refs that were asked for, which nobody copies
        self._facts: dict[str, WeightFacts | None] = {}
        self._manifests: Mapping[str, Path] = {}  #: entries by the digest of their manifest
        self._shared: dict[str, Shared] = {}  #: likewise, of those that were asked for
        self._unreadable: set[Path] = set()  #: entries that could not be described
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

    def free_mib(self) -> int | None:
        """Return what further weights may take; None: cannot be told. May take milliseconds."""
        return self._room.free_mib()

    async def ensure(self, ref: str, *, report: Report) -> Path:
        """Return the verified file or folder, fetched if need be. Raises StepFailed."""
        try:
            return await self._ensure(ref, report)
        except LlmgwError as error:
            raise StepFailed(Failure(cause=cause_of(error), message=str(error))) from error

    async def pull(self, ref: str, *, report: Report) -> None:
        """Have them here. Raises PermanentError or TransientError."""
        await self._ensure(ref, report)

    async def _ensure(self, ref: str, report: Report) -> Path:
        if problem := self.problem(ref):
            raise PermanentError(f"weights {ref}: {problem}")
        key = entry_key(ref)
        async with self._one_at_a_time.setdefault(key, anyio.Lock()):
            download = self._downloads[key] = _Download()
            try:
                path = await anyio.to_thread.run_sync(
                    self._fetch, ref, on_loop(report), download, abandon_on_cancel=True
                )
            except Cancelled:
                raise TransientError(f"weights {ref}: the download was cancelled") from None
            finally:
                # The thread sees it at its next piece, and lets go of the lock then.
                download.give_up.set()
                self._downloads.pop(key, None)
        if ref.startswith("path:"):
            self._local[ref] = path
        self._facts.pop(ref, None)  # they may be others than last time
        self._unreadable.discard(self._folder / key)
        await self._look_again()
        return path

    async def _look_again(self) -> None:
        self._known = await anyio.to_thread.run_sync(self._survey)
        self._changed.set()

    def _fetch(self, ref: str, report: Report, download: _Download) -> Path:
        source = self._sources[ref.partition(":")[0]]
        home = self._folder / entry_key(ref)
        data = home / "data"

        def tell(done: float, total: float | None) -> None:
            if download.give_up.is_set():
                raise Cancelled
            download.done, download.total = done, total
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
            with contained(source, ref):
                return source.fetch(ref, context)
        try:
            with locked(home, download.give_up), self._room.claim(ref):
                mark_used(home, self._agent, used=self._is_used(ref))
                entry = read_entry(home) or Entry(ref=ref)
                if (path := whole(home, entry)) is not None:
                    return path
                data.mkdir(mode=0o700, exist_ok=True)
                begin_entry(home, ref)
                with contained(source, ref):
                    path = self._from_peers(ref, source, context) or source.fetch(ref, context)
                clear_partials(data)
                finish_entry(home, ref, path)
                log.info("weights fetched", ref=ref)
                return path
        except OSError as error:
            raise TransientError(f"weights {ref}: {error}") from error

    def _from_peers(self, ref: str, source: WeightSource, context: FetchContext) -> Path | None:
        if self._peers is None:
            return None
        return self._peers.fetch(ref, source=source, context=context, home=context.folder.parent)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the folder in order until cancelled: say to other agents on it what is used here,
        and find out what whole weights consist of, so that other nodes can have them."""
        task_status.started()
        stop = threading.Event()
        try:
            while True:
                self._changed = anyio.Event()
                await anyio.to_thread.run_sync(self._mark_all)
                while await anyio.to_thread.run_sync(
                    self._describe_next, stop, abandon_on_cancel=True
                ):
                    await self._look_again()
                with anyio.move_on_after(_TIDY_EVERY_S):
                    await self._changed.wait()
        finally:
            stop.set()

    def _is_used(self, ref: str) -> bool:
        return any(ref in refs for refs in self._users().values())

    def _mark_all(self) -> None:
        for home, entry in self._entries():
            try:
                # Held, so that nobody who begins to use it meanwhile is overlooked.
                with locked_nowait(home) as held:
                    if held:
                        mark_used(home, self._agent, used=self._is_used(entry.ref))
            except OSError as error:
                log.warning("use of weights cannot be marked", ref=entry.ref, reason=str(error))

    def _describe_next(self, stop: threading.Event) -> bool:
        """Make one manifest that is missing; False if there is none that can be made."""
        for home, entry in self._entries():
            if whole(home, entry) is None or manifest_file(home) or home in self._unreadable:
                continue
            try:
                manifest = describe(
                    entry.ref,
                    data=home / "data",
                    path=entry.path or ".",
                    names=entry.sizes or (),
                    rest=_Rest(stop),
                )
                listing = encode_manifest(manifest)
                write_atomically(manifest_path(home, digest_of(listing)), listing)
            except Cancelled:
                return False
            except (OSError, DiskFull) as error:
                if read_entry(home) is not None:  # else it was removed meanwhile
                    self._unreadable.add(home)
                    log.warning(
                        "weights cannot be given to others", ref=entry.ref, reason=str(error)
                    )
                continue
            return True
        return False

    def shared(self, digest: str) -> Shared | None:
        """Return what has this manifest, whole; None if nothing has. May block on a disk."""
        home = self._manifests.get(digest)
        entry = None if home is None else read_entry(home)
        if home is None or entry is None or whole(home, entry) is None:
            return None
        if (known := self._shared.get(digest)) is not None:
            return known
        try:
            listing = manifest_path(home, digest).read_bytes()
            manifest = read_manifest(listing, ref=entry.ref, digest=digest)
        except (OSError, Corrupt):
            return None
        found = self._shared[digest] = Shared(home / "data", listing, manifest)
        return found

    def _make_room(self, size: int) -> int:
        """Remove what nothing uses, the longest unused first; return the bytes freed."""
        used = frozenset().union(*self._users().values())
        idle = [
            (last_change(home), home, entry)
            for home, entry in self._entries()
            if entry.ref not in used and entry_key(entry.ref) not in self._downloads
        ]
        freed = 0
        for _, home, entry in sorted(idle, key=lambda item: item[0]):
            if freed >= size:
                break
            with locked_nowait(home) as held:
                if not held or other_users(home, self._agent):
                    continue  # another agent on this folder downloads it, or uses it
                log.info("weights evicted", ref=entry.ref, bytes=entry.size_bytes)
                freed += size_of(home)
                remove_entry(home)
        return freed

    async def entries(self) -> tuple[WeightsEntry, ...]:
        """Return everything in the cache, partial downloads included."""
        return await anyio.to_thread.run_sync(self._list)

    def _list(self) -> tuple[WeightsEntry, ...]:
        users = self._users()
        found = []
        for home, entry in self._entries():
            download = self._downloads.get(entry_key(entry.ref))
            is_whole = whole(home, entry) is not None
            total = None if is_whole or download is None else download.total
            found.append(
                WeightsEntry(
                    ref=entry.ref,
                    size_bytes=entry.size_bytes if is_whole else size_of(home),
                    total_bytes=None if total is None else int(total),
                    state="ready" if is_whole else "downloading" if download else "partial",
                    used_by=tuple(
                        sorted(shard for shard, refs in users.items() if entry.ref in refs)
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
        users = sorted(shard for shard, refs in self._users().items() if ref in refs)
        if users:
            raise PermanentError(f"weights {ref} are used by {', '.join(users)}: stop those first")
        key = entry_key(ref)
        if (download := self._downloads.get(key)) is not None:
            download.give_up.set()
        home = self._folder / key
        if not home.is_dir():
            raise PermanentError(f"this node has no weights {ref}")
        await anyio.to_thread.run_sync(self._remove_locked, home, ref)
        await self._look_again()

    def _remove_locked(self, home: Path, ref: str) -> None:
        with locked(home, threading.Event()):
            if others := other_users(home, self._agent):
                raise PermanentError(
                    f"weights {ref} are used by another agent that shares this folder: stop its "
                    f"shards first, or remove {others[0]} if that agent is gone for good"
                )
            remove_entry(home)

    def _survey(self) -> tuple[CachedWeights, ...]:
        copied = [
            (entry.ref, entry.size_bytes, path, manifest_file(home))
            for home, entry in self._entries()
            if (path := whole(home, entry)) is not None
        ]
        self._manifests = {found[0]: found[1].parent for *_, found in copied if found}
        self._shared = {
            digest: shared for digest, shared in self._shared.items() if digest in self._manifests
        }
        local = [(ref, 0, path, None) for ref, path in sorted(self._local.items())]
        return tuple(
            CachedWeights(
                ref=ref,
                size_bytes=size,
                facts=self._facts_of(ref, path),
                manifest=found[0] if found else None,
            )
            for ref, size, path, found in (*copied, *local)
        )

    def _facts_of(self, ref: str, path: Path) -> WeightFacts | None:
        if ref not in self._facts:
            self._facts[ref] = read_facts(path)
        return self._facts[ref]

    def _entries(self) -> Iterator[tuple[Path, Entry]]:
        try:
            homes = sorted(self._folder.iterdir())
        except FileNotFoundError:
            return
        for home in homes:
            if (entry := read_entry(home)) is not None and home.name == entry_key(entry.ref):
                yield home, entry
