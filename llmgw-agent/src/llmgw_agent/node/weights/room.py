"""Room on the disk, promised to downloads before they take it."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmgw_agent.node.weights.faults import NoRoom


class Room:
    """What the cache's disk has left. Used by several threads."""

    def __init__(self, folder: Path, *, reserve_bytes: int, budget_bytes: int | None) -> None:
        """reserve_bytes: never promised. budget_bytes: of the whole cache; None: the disk's."""
        self._folder = folder
        self._reserve = reserve_bytes
        self._budget = budget_bytes
        self._lock = threading.Lock()
        self._promised: dict[str, int] = {}

    @contextmanager
    def claim(self, ref: str) -> Iterator[None]:
        """Keep what is reserved for `ref` until the block ends."""
        try:
            yield
        finally:
            with self._lock:
                self._promised.pop(ref, None)

    def reserve(self, ref: str, size: int, make_room: Callable[[int], int]) -> None:
        """Promise `size` bytes, downloads that run at the same time added up.

        make_room: removes what nobody uses and returns the bytes that it freed. Raises
        NoRoom with the bytes needed and free.
        """
        with self._lock:
            others = sum(value for key, value in self._promised.items() if key != ref)
            missing = size + others + self._reserve - self._free()
            if missing > 0:
                make_room(missing)
            free = self._free() - others - self._reserve
            if size > free:
                raise NoRoom(
                    f"no room on the disk of {self._folder}: needs {size:,} bytes, "
                    f"{max(0, free):,} are free beyond what is reserved"
                )
            self._promised[ref] = size

    def free_mib(self) -> int | None:
        """Return what weights may still take, promises not counted; None: cannot be told."""
        try:
            return max(0, self._free() - self._reserve) >> 20
        except OSError:
            return None

    def _free(self) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        usage = os.statvfs(self._folder)
        free = usage.f_bavail * usage.f_frsize
        if self._budget is None:
            return free
        return min(free, self._budget - bytes_below(self._folder) + self._reserve)


def bytes_below(folder: Path) -> int:
    """Return the bytes of all files; those that others remove meanwhile count or do not.

    What links lead to is not ours.
    """
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                found = os.lstat(os.path.join(root, name))  # noqa: PTH118 -- a walk over thousands
                total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total
