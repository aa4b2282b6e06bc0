"""Which releases may speak with each other."""

from __future__ import annotations

import re
from importlib import metadata

from llmgw_agent.wire.frames import Goodbye, GoodbyeCode

OLDEST_MINORS = 2
"""An agent may be this many minor releases older than its server."""

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\D.*)?")


def own_version() -> str:
    """Return the version of this distribution, as installed."""
    return metadata.version("llmgw-agent")


def skew_refusal(agent: str, server: str) -> Goodbye | None:
    """Return why an agent of this version may not work under this server; None if it may.

    Never newer: a server cannot know what a newer agent means. Patch releases do not count.
    """
    ours, theirs = _minor(server), _minor(agent)
    if ours is None or theirs is None:
        return Goodbye(
            code=GoodbyeCode.AGENT_TOO_OLD,
            message=f"agent {agent!r} and server {server!r} do not both name a version",
        )
    if theirs > ours:
        return Goodbye(
            code=GoodbyeCode.AGENT_TOO_NEW,
            message=f"agent {agent} is newer than server {server}: upgrade the server; "
            "engines on the node keep running and get no new work meanwhile",
        )
    if theirs[0] < ours[0] or theirs[1] < ours[1] - OLDEST_MINORS:
        return Goodbye(
            code=GoodbyeCode.AGENT_TOO_OLD,
            message=f"agent {agent} is more than {OLDEST_MINORS} minor releases older than "
            f"server {server}: upgrade the agent; engines keep running across it",
        )
    return None


def _minor(version: str) -> tuple[int, int] | None:
    match = _VERSION.fullmatch(version)
    return (int(match[1]), int(match[2])) if match else None
