"""The agent's own folder: who it is, and that nobody else is it."""

from __future__ import annotations

import fcntl
import os
import tempfile
import uuid
from pathlib import Path

from llmgw.errors import ConfigError, Problem
from llmgw_agent.node.durable import write_atomically

_HOST_LOCKS = Path("/run/lock/llmgw")


class StateFolder:
    """`<state_dir>`, held by a lock for as long as this object lives."""

    def __init__(self, path: Path) -> None:
        """Make the folder (0700) and take its lock.

        Raises ConfigError if it cannot be used, or if another agent uses it.
        """
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(path, f"cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            raise _unusable(
                path,
                f"another agent (pid {holder}) runs on this folder: stop it, or give this one "
                "another --state-dir and --node-id",
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        self.shards = path / "shards"
        self.weights = path / "weights"
        self.engines = path / "engines"
        self.assigned = path / "assigned.json"
        self.identity = path / "identity.json"
        self.status = path / "status.json"

    def uid(self) -> str:
        """Return the agent's id, made at the first start: it marks engines as this agent's."""
        file = self.path / "uid"
        try:
            return file.read_text().strip()
        except FileNotFoundError:
            uid = uuid.uuid4().hex
            write_atomically(file, uid.encode())
            return uid

    def close(self) -> None:
        """Let another agent have the folder."""
        os.close(self._lock)


def is_agent_alive(path: Path) -> bool:
    """Whether an agent holds this state folder now."""
    try:
        descriptor = os.open(path / "agent.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def host_lock_folder(wanted: Path | None) -> Path:
    """Return a folder in which all agents of this host find each other's device locks.

    Raises ConfigError if the one that was asked for cannot be made.
    """
    candidates = (
        (wanted,) if wanted else (_HOST_LOCKS, Path(tempfile.gettempdir()) / "llmgw-device-locks")
    )
    for folder in candidates:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Whoever the agents run as; the sticky bit keeps them from removing each other's.
            if folder.stat().st_uid == os.getuid():
                folder.chmod(0o1777)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise _unusable(candidates[-1], "cannot be written: give --lock-folder")


def _unusable(path: Path, message: str) -> ConfigError:
    return ConfigError(str(path), [Problem(path="", message=message)])
