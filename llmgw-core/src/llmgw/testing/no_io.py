"""A guard for code that must describe and not act."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_io() -> Iterator[None]:
    """Fail if the block opens a file, a socket or a process, imports excepted."""
    _guard.install()
    _guard.depth += 1
    try:
        yield
    finally:
        _guard.depth -= 1
    if seen := _guard.take():
        raise AssertionError(f"what only describes must do no I/O, but did: {', '.join(seen)}")


class _Guard:
    """Counts audit events. A hook cannot be removed, so that there is one, asleep by default."""

    WATCHED = (
        "open",
        "os.listdir",
        "os.scandir",
        "socket.",
        "subprocess.",
        "os.exec",
        "os.fork",
        "os.posix_spawn",
        "os.system",
    )

    def __init__(self) -> None:
        self.depth = 0
        self.installed = False
        self._seen: list[str] = []

    def install(self) -> None:
        if not self.installed:
            self.installed = True
            sys.addaudithook(self._hear)

    def take(self) -> list[str]:
        seen, self._seen = self._seen, []
        return seen

    def _hear(self, event: str, args: tuple[object, ...]) -> None:
        if self.depth and event.startswith(self.WATCHED) and not _is_import(args):
            self._seen.append(f"{event}{args[:1]}")


_guard = _Guard()


def _is_import(args: tuple[object, ...]) -> bool:
    # A module imported on first use is read from disk; that is not its doing.
    return bool(args) and str(args[0]).endswith((".py", ".pyc", ".so", "__pycache__"))
