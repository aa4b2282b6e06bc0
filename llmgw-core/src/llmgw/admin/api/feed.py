"""The feed: how stand-alone routers hear of endpoints, and say what they used."""

from __future__ import annotations

from starlette.responses import Response, StreamingResponse

from llmgw.admin.operations import Call, Operation, read_body
from llmgw.admin.parts import FeedSource
from llmgw.errors import NotAvailable
from llmgw.store.tokens import Role


async def subscribe(call: Call) -> Response:
    return StreamingResponse(_feed(call).lines(), media_type="application/x-ndjson")


async def report(call: Call) -> Response:
    shares = await _feed(call).receive(await read_body(call.request))
    return Response(shares, media_type="application/json")


def _feed(call: Call) -> FeedSource:
    if call.parts.feed is None:
        raise NotAvailable("this server feeds no stand-alone routers")
    return call.parts.feed


# Engines' credentials and key hashes travel on it, so it takes the highest role.
OPERATIONS = (
    Operation(
        method="GET",
        path="/feed",
        role=Role.ADMIN,
        summary="Whole snapshots for a router, one JSON object a line, for ever.",
        handler=subscribe,
        media_type="application/x-ndjson",
    ),
    Operation(
        method="POST",
        path="/feed/usage",
        role=Role.ADMIN,
        summary="What a router has used and could use; the answer says what it may.",
        handler=report,
        media_type="application/json",
        errors=(413,),
    ),
)
