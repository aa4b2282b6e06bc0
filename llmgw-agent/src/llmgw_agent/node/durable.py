"""Files that are either the old or the new version, whenever the power goes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from llmgw.errors import TransientError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(TransientError):
    """No room for what must be kept; the message names the file. Nothing was changed."""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace the file at `path` by `data`, or leave it as it was and raise.

    Raises DiskFull, or OSError for anything else. The folder is synced too: without that a
    rename may be lost although the file's own content was safe.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        if error.errno in _FULL:
            raise DiskFull(
                f"no room on the disk to write {path}: free some and it goes on"
            ) from error
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
