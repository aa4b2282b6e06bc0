"""The folder of one shard: what the agent writes for the shim, and what the shim leaves.

spec.json  launch, by the agent      state.json  the engine runs, by the shim
lock       held by the shim          exit.json   nothing of it is left, by the shim
key        the engine's API key      ready.json  this incarnation has been ready, by the agent
log/       output                    tmp/        the engine's scratch, emptied at each start
asleep.json  the engine sleeps, or is on its way there or back, by the agent
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from llmgw.contracts.engine import Probe
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import Epoch
from llmgw.domain.replicas import Failure
from llmgw.domain.secret import Secret
from llmgw_agent.node.durable import write_atomically
from llmgw_agent.node.processes import Process

_T = TypeVar("_T")
_NO_EPOCH = Epoch(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """`spec.json`: what the shim starts, and what the next agent must know about it."""

    run: int  #: incarnation, counted over the whole life of the assignment
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    port: int | None
    cookie: str
    token: str  #: of the one shim that may start it
    device_locks: tuple[str, ...]
    shard: ShardSpec
    epoch: Epoch = _NO_EPOCH
    cgroup: str | None = None
    ready: Probe | None = None  #: as the adapter gave it, so that adoption needs no adapter
    warm_up: tuple[Probe, ...] = ()
    expect_models: tuple[str, ...] = ()
    oom_score_adj: int = 500
    log_file_bytes: int = 64 << 20
    log_files: int = 5
    options: Mapping[str, object] = field(default_factory=dict)  #: added after a failure
    restarts: int = 0
    failures: int = 0  #: in a row
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimState:
    """`state.json`, and the part of it that `exit.json` repeats."""

    run: int
    boot_id: str
    shim_pid: int
    shim_start_time: int
    port: int | None
    first_log: int
    pid: int
    start_time: int
    main_exit: int | None = None  #: exit code of the main process, whose tree may live on
    lent: bool | None = None  #: the locks of its devices; None: of a shim that cannot lend

    @property
    def main(self) -> Process:
        return Process(self.pid, self.start_time)

    @property
    def shim(self) -> Process:
        return Process(self.shim_pid, self.shim_start_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """`asleep.json`: written before the engine is told, so that no agent takes it for awake."""

    run: int
    level: int
    verified: bool  #: its memory was seen to come back


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimExit:
    """`exit.json`: the end of one incarnation."""

    run: int
    exit_code: int | None
    first_log: int
    dropped_bytes: int = 0
    refusal: str | None = None  #: the engine was never started: `exec_failed`, `device_busy`
    message: str = ""


class ShimAlive(Exception):
    """A shim of an earlier launch lives in the folder."""


class ShardFolder:
    """Reads and writes one shard's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "log"
        self.scratch = path / "tmp"

    def prepare(self, record: LaunchRecord) -> None:
        """Make the folder ready for a shim to start this record.

        What an earlier incarnation left is removed first, so that nobody can take its state
        for that of the new one. The lock is held meanwhile: a shim that was started by an agent
        which died a moment ago then finds a record that is not meant for it, and ends. Raises
        ShimAlive if one is past that point, DiskFull or OSError.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            self._prepare(record)

    def _prepare(self, record: LaunchRecord) -> None:
        for name in ("state.json", "exit.json", "ready.json", "asleep.json"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self.path / "spec.json", msgspec.json.encode(record))

    def key(self) -> Secret:
        """Return the engine's key, made at the first call and kept for the shard's life."""
        path = self.path / "key"
        try:
            return Secret(path.read_text())
        except FileNotFoundError:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            key = secrets.token_urlsafe(32)
            write_atomically(path, key.encode())
            return Secret(key)

    def mark_ready(self, run: int) -> None:
        """Note that this incarnation has been ready, for an agent that adopts it."""
        write_atomically(self.path / "ready.json", msgspec.json.encode(run))

    def was_ready(self, run: int) -> bool:
        return self._read("ready.json", int) == run

    def mark_asleep(self, sleep: Sleep) -> None:
        """Note how far the engine is on its way to sleep."""
        write_atomically(self.path / "asleep.json", msgspec.json.encode(sleep))

    def mark_awake(self) -> None:
        (self.path / "asleep.json").unlink(missing_ok=True)

    def sleep(self, run: int) -> Sleep | None:
        """Return how this incarnation sleeps; None: it is awake."""
        found = self._read("asleep.json", Sleep)
        return found if found is not None and found.run == run else None

    def record(self) -> LaunchRecord | None:
        return self._read("spec.json", LaunchRecord)

    def state(self) -> ShimState | None:
        return self._read("state.json", ShimState)

    def exit(self) -> ShimExit | None:
        return self._read("exit.json", ShimExit)

    def is_locked(self) -> bool:
        """Whether a shim lives here. Not to be asked while one is being started."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise ShimAlive from error
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """Remove everything. Whatever cannot be removed stays without harm."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _read(self, name: str, kind: type[_T]) -> _T | None:
        # Written whole by rename; what cannot be read was written by something else.
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
