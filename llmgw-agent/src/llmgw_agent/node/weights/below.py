"""Opens files inside a folder, and never anything that a link there leads to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def open_below(root: Path, parts: Iterable[str]) -> int:
    """Return a descriptor, to read from, of what lies at `parts` under `root`.

    Reached step by step, so that no link is followed on the way. Raises OSError: ELOOP at a link.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    here = os.open(root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    for part in parts:
        try:
            below = os.open(part, flags, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here
