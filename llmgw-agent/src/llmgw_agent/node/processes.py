"""Which processes belong to an engine, proven and never guessed, and how to end them.

A pid alone names nothing: it is reused. A process is its pid and its start time, and a signal
goes through a pidfd that was checked against both.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Listening = Mapping[int, Sequence[tuple[Address, str]]]  #: by port: where, and the socket's inode

COOKIE = "LLMGW_REPLICA"  #: variable that marks every process of an engine

_STARVED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_PROC = Path("/proc")
_LISTEN = " 0A "  #: the state of a socket that listens, in its column
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """One process of this boot, never another that got its number later."""

    pid: int
    start_time: int  #: field 22 of /proc/PID/stat, ticks since boot


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEntry:
    """One line of the process table."""

    process: Process
    parent: int
    session: int
    cookie: str | None  #: None: has none, or is not ours to read


def raise_if_starved(error: OSError) -> None:
    """Raise what tells of this agent and not of the process that was asked for.

    An agent that can open no file must not take its engines for dead: it would end and restart
    every one of them.
    """
    if error.errno in _STARVED:
        raise error


def boot_id() -> str:
    """Return the id of this boot of the host."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def entry_of(pid: int) -> ProcessEntry | None:
    """Return whoever has this pid now; None if nobody has, or a zombie."""
    return _entry(pid, with_cookie=True)


def find(pid: int) -> Process | None:
    """Return the process that has this pid now; None if there is none, or a zombie."""
    entry = _entry(pid, with_cookie=False)
    return entry.process if entry else None


def is_alive(process: Process) -> bool:
    """Whether exactly this process still runs. A zombie does not."""
    return find(process.pid) == process


def open_pidfd(process: Process) -> int | None:
    """Return a descriptor that stands for this process; None if it has ended.

    Checked after opening: from then on the pid cannot be given to another behind our back.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        raise_if_starved(error)
        return None
    if is_alive(process):
        return descriptor
    os.close(descriptor)
    return None


def send_signal(process: Process, number: int) -> bool:
    """Send a signal to exactly this process; False if it has ended."""
    descriptor = open_pidfd(process)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def process_table() -> dict[int, ProcessEntry]:
    """Return every process that is not a zombie, by pid."""
    entries = (_entry(int(item), with_cookie=True) for item in os.listdir(_PROC) if item.isdigit())  # noqa: PTH208 -- 2 ms, not 9
    return {entry.process.pid: entry for entry in entries if entry is not None}


class Recent(Generic[T]):
    """A reading of the whole machine, made at most once in a while for all who ask. Used by threads."""

    def __init__(self, read: Callable[[], T], *, max_age_s: float) -> None:
        self._read = read
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._last: tuple[float, T] | None = None

    def __call__(self) -> T:
        """Return a reading that may be a little old: good for looks, and for no death sentence."""
        with self._lock:
            # The machine's own clock, not the agent's: what is read is real.
            now = time.monotonic()
            if self._last is None or now - self._last[0] > self._max_age_s:
                self._last = (now, self._read())
            return self._last[1]


def tree(
    table: Mapping[int, ProcessEntry], *, cookie: str, roots: Iterable[Process] = ()
) -> frozenset[Process]:
    """Return the engine's processes: marked by the cookie, and whatever descends from them.

    roots: processes known to be of the tree, e.g. the main one, or its children seen earlier.
    Their descendants and their sessions count too: a worker that sets its process title
    overwrites its environment, and the cookie with it.
    """
    found = {entry.process.pid for entry in table.values() if entry.cookie == cookie}
    found |= {
        root.pid for root in roots if (e := table.get(root.pid)) is not None and e.process == root
    }
    grew = True
    while grew:
        more = {
            entry.process.pid
            for entry in table.values()
            if entry.process.pid not in found
            and (entry.parent in found or entry.session in found)
            and entry.cookie in (None, cookie)
        }
        grew = bool(more)
        found |= more
    return frozenset(table[pid].process for pid in found)


def children(table: Mapping[int, ProcessEntry], parent: Process) -> frozenset[Process]:
    """Return the children of a process, such as the orphans that a shim has taken in."""
    entry = table.get(parent.pid)
    if entry is None or entry.process != parent:
        return frozenset()
    return frozenset(item.process for item in table.values() if item.parent == parent.pid)


class Listener(StrEnum):
    """Who listens on a port."""

    NOBODY = "nobody"
    OURS = "ours"
    FOREIGN = "foreign"


def listener(
    port: int, address: str, processes: Iterable[Process], sockets: Listening | None = None
) -> Listener:
    """Return whether connections to this address and port reach one of these processes.

    Proof by the socket's inode. Of several sockets the exact address beats the wildcard, as in
    the kernel; one of them that is not ours makes it foreign, since the kernel may choose it.
    sockets: None: as they are now.
    """
    found = (listening_sockets() if sockets is None else sockets).get(port, ())
    exact = {inode for bound, inode in found if bound == ipaddress.ip_address(address)}
    reached = exact or {inode for bound, inode in found if bound.is_unspecified}
    if not reached:
        return Listener.NOBODY
    held: set[str] = set()
    for process in processes:
        held |= _socket_inodes(process.pid)
    return Listener.OURS if reached <= held else Listener.FOREIGN


def listening_sockets() -> Listening:
    """Return by port what listens on this machine: addresses, and the inodes of their sockets.

    The kernel lists every connection beside them: 24 ms for the 11,000 of a busy router (measured).
    """
    found: dict[int, list[tuple[Address, str]]] = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        except OSError as error:
            raise_if_starved(error)
            continue
        for line in lines:
            if _LISTEN not in line:
                continue
            fields = line.split()
            address, _, hex_port = fields[1].rpartition(":")
            if fields[3] == _LISTEN.strip():
                found.setdefault(int(hex_port, 16), []).append((_address(address), fields[9]))
    return found


def _entry(pid: int, *, with_cookie: bool) -> ProcessEntry | None:
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError as error:
        raise_if_starved(error)
        return None
    if fields[0] in b"ZX":
        return None
    return ProcessEntry(
        process=Process(pid, int(fields[19])),
        parent=int(fields[1]),
        session=int(fields[3]),
        cookie=_cookie(pid) if with_cookie else None,
    )


def _cookie(pid: int) -> str | None:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError as error:
        raise_if_starved(error)
        return None
    mark = f"{COOKIE}=".encode()
    for variable in environment.split(b"\0"):
        if variable.startswith(mark):
            return variable[len(mark) :].decode(errors="replace")
    return None


def _address(text: str) -> Address:
    # The kernel prints each 32-bit word in the machine's byte order, little-endian on all of ours.
    words = [bytes.fromhex(text[index : index + 8])[::-1] for index in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address


def _socket_inodes(pid: int) -> set[str]:
    inodes = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 -- names are all that is needed
    except OSError as error:
        raise_if_starved(error)
        return set()
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 -- not a path
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    return inodes


def cpu_seconds(process: Process) -> float:
    """Return the processor time that a process has used, 0.0 if it has ended."""
    try:
        fields = (_PROC / str(process.pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0


@functools.lru_cache(maxsize=1024)
def started_at(process: Process) -> float:
    """Return when a process of this boot was started, in Unix seconds.

    Remembered, since a machine of many cores takes milliseconds to say, and each report asks. Whoever
    steps the clock also does not make an engine another one by that.
    """
    for line in (_PROC / "stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) + process.start_time / _TICKS
    return 0.0


def close(descriptor: int) -> None:
    """Close a pidfd."""
    os.close(descriptor)


def reap(child: int) -> bool:
    """Take a child of ours off the process table if it has ended; return whether it has."""
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:
        return True
