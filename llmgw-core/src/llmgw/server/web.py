"""Small ASGI pieces: two applications on one listener, a token before a handler, the feed alone."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from llmgw.domain.secret import Secret
from llmgw.errors import RequestError
from llmgw.router.feed import FeedSource

Application = Callable[..., Awaitable[None]]


def with_admin(api: Application, admin: Application | None) -> Application:
    """Return one application that has the operator's side below `/admin`; None: it has not."""
    if admin is None:
        return api

    async def both(
        scope: MutableMapping[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        path: str = scope.get("path", "")
        is_admin = path == "/admin" or path.startswith("/admin/")
        await (admin if is_admin else api)(scope, receive, send)

    return both


def with_token(
    handler: Callable[[Request], Awaitable[Response]], token: Secret
) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that only answers requests which carry the token."""
    expected = token.reveal().encode()

    async def guarded(request: Request) -> Response:
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        # As bytes: comparing texts in constant time raises for letters outside ASCII (C060).
        is_right = hmac.compare_digest(sent.strip().encode("utf-8", "replace"), expected)
        if scheme.lower() == "bearer" and is_right:
            return await handler(request)
        error = {
            "message": "send the token of <state_dir>/admin.token as `Authorization: Bearer …`",
            "type": "authentication_error",
            "code": "unauthorized",
            "param": None,
        }
        return JSONResponse(
            {"error": error}, status_code=401, headers={"www-authenticate": "Bearer"}
        )

    return guarded


def feed_app(feed: FeedSource, token: Secret) -> Starlette:
    """Return the feed alone, for the workers of one machine: the same two routes as the admin API."""

    async def subscribe(_: Request) -> Response:
        return StreamingResponse(feed.lines(), media_type="application/x-ndjson")

    async def report(request: Request) -> Response:
        try:
            shares = await feed.receive(await request.body())
        except RequestError as error:
            return JSONResponse({"error": {"message": error.message}}, status_code=error.status)
        return Response(shares, media_type="application/json")

    return Starlette(
        routes=[
            Route("/admin/v1/feed", with_token(subscribe, token)),
            Route("/admin/v1/feed/usage", with_token(report, token), methods=["POST"]),
        ]
    )
