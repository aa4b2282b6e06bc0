"""One server per SQLite file, held by the kernel: it ends with the process, however that dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from llmgw.errors import ConfigError, Problem


class FileLock:
    """An exclusive lock on `<database>.lock`."""

    def __init__(self, database: Path) -> None:
        """Take it. Raises ConfigError naming the process that has it."""
        self._path = database.with_name(database.name + ".lock")
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise ConfigError(
                str(database),
                [
                    Problem(
                        path="store.url",
                        message=f"{database} is in use by another llmgw server (process {holder or '?'}); "
                        "stop that one, give this one another state_dir, or let several servers "
                        "share a postgresql:// store",
                    )
                ],
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give it back. The file stays: removing it would let two processes lock two files."""
        os.close(self._descriptor)
