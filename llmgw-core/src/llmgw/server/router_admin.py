"""The operator's side of a stand-alone router: health for machines, metrics for the token.

Not the admin room: that brings the store and its libraries, and a router has neither.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llmgw.domain.secret import Secret
from llmgw.router.app import Router
from llmgw.router.feed import FeedClient

_PAGE = "text/plain; version=0.0.4; charset=utf-8"


def router_admin(router: Router, feed: FeedClient, token: Secret) -> Starlette:
    """Return the application: `/healthz`, `/readyz`, and behind the token `/metrics`."""

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readiness(_: Request) -> Response:
        status = {"status": "ready" if router.is_ready else "not ready", "stale": feed.is_stale}
        return JSONResponse(status, status_code=200 if router.is_ready else 503)

    async def metrics(_: Request) -> Response:
        stale = f"# TYPE llmgw_feed_stale gauge\nllmgw_feed_stale {int(feed.is_stale)}\n"
        return Response(await router.metrics_page() + stale.encode(), media_type=_PAGE)

    return Starlette(
        routes=[
            Route("/healthz", health),
            Route("/readyz", readiness),
            Route("/metrics", _with_token(metrics, token)),
        ]
    )


def _with_token(
    handler: Callable[[Request], Awaitable[Response]], token: Secret
) -> Callable[[Request], Awaitable[Response]]:
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
