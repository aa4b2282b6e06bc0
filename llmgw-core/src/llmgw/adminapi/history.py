"""Events and usage."""

from __future__ import annotations

from typing import Any

from llmgw.adminapi.reply import Reply


class EventReply(Reply):
    """One line of the operators' timeline."""

    id: int
    at: float
    who: str
    kind: str
    subject: str
    message: str
    before: Any = None
    after: Any = None


class EventsReply(Reply):
    """Newest first."""

    events: tuple[EventReply, ...]
    next: str | None = None
    """Pass as `before` for older ones; null at the beginning."""


class UsageRow(Reply):
    """A sum; a field that was not grouped by is null."""

    key: str | None = None
    key_name: str | None = None
    model: str | None = None
    start_at: float | None = None
    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsageReply(Reply):
    since_at: float
    until_at: float
    rows: tuple[UsageRow, ...]
