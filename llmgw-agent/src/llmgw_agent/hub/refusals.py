"""Refusals worth a line: agents dial again for ever, and each time are refused again."""

from __future__ import annotations

from llmgw.logs import get_logger

log = get_logger(__name__)

_SAY_AGAIN_S = 60.0
_KEPT = 1024


class Refusals:
    """Says each refusal once, and then once a minute with how often it happened."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def note(self, *, code: str, reason: str, peer: str, now: float) -> None:
        """Log it if it is new or a minute old. now: monotonic seconds."""
        key = (code, reason)
        said_at, times = self._said.pop(key, (None, 0))
        if said_at is not None and now - said_at < _SAY_AGAIN_S:
            self._said[key] = (said_at, times + 1)
            return
        if len(self._said) >= _KEPT:
            # Reasons may hold what a peer made up; the oldest goes.
            del self._said[next(iter(self._said))]
        self._said[key] = (now, 0)
        log.warning("session refused", peer=peer, code=code, reason=reason, times=times + 1)
