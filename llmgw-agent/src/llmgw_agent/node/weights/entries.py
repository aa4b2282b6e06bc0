"""One ref's folder in the cache: whole and verified, or partial and resumable.

    <folder>/<key>/lock                   held by whoever downloads, of whichever agent
    <folder>/<key>/entry.json             the ref from the beginning; what came, once it is whole
    <folder>/<key>/manifest-<sha256>.json what its files are, for other nodes (`manifest`)
    <folder>/<key>/used-by/<agent uid>    an agent whose shards use it, of those that share the folder
    <folder>/<key>/data/                  belongs to the source that fetches

Several agents may share the folder. A lock is the kernel's: the one of a process that is gone
never blocks anybody (C051). A mark of use outlives its agent, as the agent's engines do.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmgw_agent.node.durable import write_atomically
from llmgw_agent.node.weights.room import bytes_below

_LOCK_WAIT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`entry.json`."""

    ref: str
    path: str | None = None  #: what the source returned, relative to `data`; None: not whole yet
    sizes: dict[str, int] | None = None  #: of every file, relative to `data`

    @property
    def size_bytes(self) -> int:
        return sum((self.sizes or {}).values())


class Cancelled(Exception):
    """Nobody wants the download any more."""


def entry_key(ref: str) -> str:
    """Return the folder's name: ours, whatever the ref says (C053)."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", ref.partition("#")[0]).strip("-")[:60]
    return f"{readable}-{hashlib.sha256(ref.encode()).hexdigest()[:16]}"


def read_entry(home: Path) -> Entry | None:
    """Return what is known of the folder; None if it is none of ours."""
    try:
        return msgspec.json.decode((home / "entry.json").read_bytes(), type=Entry)
    except (OSError, msgspec.DecodeError):
        return None


def begin_entry(home: Path, ref: str) -> None:
    """Note that the ref is on its way here, and is not what it was before."""
    _write(home, Entry(ref=ref))
    for path in home.glob("manifest-*.json"):
        path.unlink(missing_ok=True)


def finish_entry(home: Path, ref: str, path: Path) -> None:
    """Note that all is here and verified. path: what the engine is given, below `data`."""
    data = home / "data"
    files = [item for item in data.rglob("*") if item.is_file() and not item.is_symlink()]
    _write(
        home,
        Entry(
            ref=ref,
            path=str(path.relative_to(data)),
            sizes={
                str(item.relative_to(data)): item.stat().st_size
                for item in files
                if item.is_relative_to(path)
            },
        ),
    )


def whole(home: Path, entry: Entry) -> Path | None:
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


def last_change(home: Path) -> float:
    """Return when it was made or last written to, Unix seconds; 0 if it has just been removed."""
    try:
        return home.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def size_of(home: Path) -> int:
    """Return the bytes of what has come so far."""
    return bytes_below(home / "data")


def mark_used(home: Path, agent: str, *, used: bool) -> None:
    """Note whether shards of this agent use it. agent: its uid."""
    mark = home / "used-by" / agent
    if used:
        mark.parent.mkdir(mode=0o700, exist_ok=True)
        mark.touch(mode=0o600)
    else:
        mark.unlink(missing_ok=True)


def other_users(home: Path, agent: str) -> tuple[Path, ...]:
    """Return the marks of other agents."""
    return tuple(sorted(path for path in home.glob("used-by/*") if path.name != agent))


def remove_entry(home: Path) -> None:
    """Remove all of it. The entry first: what is half removed must not pass for whole."""
    if home.is_symlink():
        home.unlink()  # moved by the node's owner: what it leads to is not ours to take away
        return
    (home / "entry.json").unlink(missing_ok=True)
    shutil.rmtree(home, ignore_errors=True)


@contextmanager
def locked(home: Path, give_up: threading.Event) -> Iterator[None]:
    """Hold the folder, made if need be; wait for another agent's work on it, but not past `give_up`.

    Raises Cancelled.
    """
    while True:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (descriptor := _try_lock(home)) is not None:
            break
        if give_up.wait(_LOCK_WAIT_S):
            raise Cancelled
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked_nowait(home: Path) -> Iterator[bool]:
    """Hold the folder if it is there and nobody does; yield whether it is held."""
    descriptor = _try_lock(home)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _try_lock(home: Path) -> int | None:
    path = home / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None  # removed a moment ago
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    # Whoever held it last may have removed the folder, and this lock with it.
    if _is_same(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _write(home: Path, entry: Entry) -> None:
    write_atomically(home / "entry.json", msgspec.json.encode(entry))
