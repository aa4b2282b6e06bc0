"""How the link to each server stands, for `llmgw agent status` and for the log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SAY_AGAIN_S = 60.0


class ServerState(StrEnum):
    """What the link is doing about one server."""

    DIALLING = "dialling"
    CONNECTED = "connected"
    WAITING = "waiting"  #: to dial again
    REFUSED = "refused"  #: as WAITING, and the server said why it does not want us


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """One server as the agent sees it."""

    server: str
    state: ServerState
    since: float  #: Unix seconds
    reason: str = ""  #: why it is not connected


@dataclass(slots=True)
class Complaint:
    """Decides when a reason is worth a line: when it is new, and then once a minute."""

    _reason: str | None = None
    _said_at: float = 0.0

    def is_due(self, reason: str, now: float) -> bool:
        """Return whether to say it. now: monotonic seconds."""
        if reason == self._reason and now - self._said_at < SAY_AGAIN_S:
            return False
        self._reason, self._said_at = reason, now
        return True

    def clear(self) -> None:
        self._reason = None
