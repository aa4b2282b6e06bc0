"""The cgroup that a service manager has delegated to the agent, where there is one."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def delegated_cgroup() -> Path | None:
    """Return the agent's own cgroup if it may make others below it (`Delegate=yes`); else None.

    A cgroup that merely can be written is not enough: root can write all of them, and the
    service manager would be confused by ours below one that it manages.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    path = _ROOT / own.lstrip("/")
    for attribute in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(path, attribute) == b"1":
                return path if os.access(path, os.W_OK) else None
        except OSError:
            continue
    return None
