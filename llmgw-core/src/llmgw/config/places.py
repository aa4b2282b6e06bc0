"""Where llmgw keeps its things on this machine. Looks, but makes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ADMIN_TOKEN_FILE = "admin.token"  # noqa: S105 # a file's name
JOIN_TOKEN_FILE = "join.token"  # noqa: S105 # likewise


def default_state_dir(env: Mapping[str, str]) -> Path:
    """Return the platform's folder for state: `$XDG_STATE_HOME/llmgw` or `~/.local/state/llmgw`.

    env: the process's environment. A service sets `state_dir` instead, as its unit's
    `StateDirectory=` says. XDG wants a relative value ignored.
    """
    base = Path(env.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():
        home = env.get("HOME")
        base = (Path(home) if home else Path.home()) / ".local" / "state"
    return base / "llmgw"
