"""Events and usage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from pydantic import Field
from starlette.responses import Response, StreamingResponse

from llmgw.admin.operations import Call, Operation
from llmgw.adminapi.history import EventReply, EventsReply, UsageReply, UsageRow
from llmgw.adminapi.reply import Request
from llmgw.clock import Clock
from llmgw.errors import ConfigError, Problem, StoreUnavailable
from llmgw.store import Store
from llmgw.store.events import Event
from llmgw.store.tokens import Role
from llmgw.store.usage import UsageGroup

_FOLLOW_S = 1.0
# For the document only: the check below says it better than a pattern could.
_BY = "^((key|model|day|hour)(,(key|model|day|hour))*)?$"
_MONTH_S = 30 * 86_400.0
Time = Annotated[float, Field(ge=0, le=1e11)]


class EventsQuery(Request):
    """Which part of the timeline."""

    before: Annotated[int, Field(ge=1, le=2**53)] | None = None
    after: Annotated[int, Field(ge=0, le=2**53)] | None = None
    subject: Annotated[str, Field(max_length=300)] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class FollowQuery(Request):
    """From where."""

    after: Annotated[int, Field(ge=0, le=2**53)] | None = None
    """Id of the last event seen; null: only what comes from now on."""


class UsageQuery(Request):
    """Which usage, and how it is summed."""

    since: Time | None = None
    """Unix seconds; null: thirty days ago."""
    until: Time | None = None
    by: Annotated[str, Field(max_length=60, json_schema_extra={"pattern": _BY})] = "key,model"
    """Any of key, model, day and hour, with commas; empty: one sum."""
    key: Annotated[str, Field(max_length=64)] | None = None
    model: Annotated[str, Field(max_length=300)] | None = None


async def events(call: Call) -> EventsReply:
    query = call.query_as(EventsQuery)
    found = await call.store.run(
        lambda: call.store.events.list(
            before=query.before, after=query.after, subject=query.subject, limit=query.limit
        )
    )
    more = len(found) == query.limit and query.after is None
    return EventsReply(
        events=tuple(_event(event) for event in found), next=str(found[-1].id) if more else None
    )


async def follow(call: Call) -> Response:
    store = call.store
    after = call.query_as(FollowQuery).after
    if after is None:
        newest = await store.run(lambda: store.events.list(limit=1))
        after = newest[0].id if newest else 0

    return StreamingResponse(
        _following(store, after, call.parts.clock), media_type="application/x-ndjson"
    )


async def _following(store: Store, last: int, clock: Clock) -> AsyncIterator[bytes]:
    yield b"\n"  # the head of the answer leaves with its first part, and events may be hours away
    while True:
        try:
            found = await store.run(partial(store.events.list, after=last))
        except StoreUnavailable:
            found = ()  # it comes back, and nothing is missed by then
        for event in reversed(found):
            last = event.id
            yield _event(event).model_dump_json().encode() + b"\n"
        if not found:
            await clock.sleep(_FOLLOW_S)


async def usage(call: Call) -> UsageReply:
    query = call.query_as(UsageQuery)
    now = call.parts.clock.wall()
    since = now - _MONTH_S if query.since is None else query.since
    groups = _groups(query.by)
    sums, keys = await call.store.run(
        lambda: (
            call.store.usage.sums(
                groups, since=since, until=query.until, key_id=query.key, model=query.model
            ),
            call.store.keys.list(),
        )
    )
    names = {record.key.id: record.key.name for record in keys}
    return UsageReply(
        since_at=since,
        until_at=now if query.until is None else query.until,
        rows=tuple(
            UsageRow(
                key=item.key_id,
                key_name=names.get(item.key_id or ""),
                model=item.model,
                start_at=item.start,
                requests=item.requests,
                failed=item.failed,
                prompt_tokens=item.prompt_tokens,
                cached_tokens=item.cached_tokens,
                completion_tokens=item.completion_tokens,
            )
            for item in sums
        ),
    )


def _groups(text: str) -> tuple[UsageGroup, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        return tuple(UsageGroup(word) for word in words)
    except ValueError:
        message = f"must be some of key, model, day, hour with commas, got {text!r}"
        raise ConfigError("query", [Problem(path="by", message=message)]) from None


def _event(event: Event) -> EventReply:
    return EventReply(
        id=event.id,
        at=event.at,
        who=event.who,
        kind=event.kind,
        subject=event.subject,
        message=event.message,
        before=event.before,
        after=event.after,
    )


OPERATIONS = (
    Operation(
        method="GET",
        path="/events",
        role=Role.VIEWER,
        summary="What happened, newest first.",
        handler=events,
        reply=EventsReply,
        query=EventsQuery,
    ),
    Operation(
        method="GET",
        path="/events/follow",
        role=Role.VIEWER,
        summary="Events as they come, one JSON object a line, for ever.",
        handler=follow,
        query=FollowQuery,
        media_type="application/x-ndjson",
    ),
    Operation(
        method="GET",
        path="/usage",
        role=Role.VIEWER,
        summary="Requests and tokens by key, model, day or hour.",
        handler=usage,
        reply=UsageReply,
        query=UsageQuery,
    ),
)
