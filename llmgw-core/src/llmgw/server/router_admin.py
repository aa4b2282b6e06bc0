"""The operator's side of a stand-alone router: health for machines, metrics for the token.

Not the admin room: that brings the store and its libraries, and a router has neither.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llmgw.domain.secret import Secret
from llmgw.router.api import http_errors
from llmgw.server.web import with_token

_PAGE = "text/plain; version=0.0.4; charset=utf-8"


def feed_page(stale: bool) -> bytes:
    """Return what the metrics page says of the feed."""
    return (
        "# HELP llmgw_feed_stale Whether no server answers, so that the last table is served.\n"
        "# TYPE llmgw_feed_stale gauge\n"
        f"llmgw_feed_stale {int(stale)}\n"
    ).encode()


def router_admin(
    *,
    is_ready: Callable[[], bool],
    is_stale: Callable[[], bool],
    metrics_page: Callable[[], Awaitable[bytes]],
    token: Secret,
) -> Starlette:
    """Return the application: `/healthz`, `/readyz`, and behind the token `/metrics`.

    is_stale: whether no server answers, so that the last table is served.
    """

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readiness(_: Request) -> Response:
        ready = is_ready()
        status = {"status": "ready" if ready else "not ready", "stale": is_stale()}
        return JSONResponse(status, status_code=200 if ready else 503)

    async def metrics(_: Request) -> Response:
        return Response(await metrics_page(), media_type=_PAGE)

    routes = [
        Route("/healthz", health),
        Route("/readyz", readiness),
        Route("/metrics", with_token(metrics, token)),
    ]
    application = Starlette(
        routes=routes,
        exception_handlers={HTTPException: http_errors([route.path for route in routes])},  # type: ignore[dict-item]  # Starlette types handlers of subclasses too narrowly
    )
    # A redirect would be built from our inside address (C006).
    application.router.redirect_slashes = False
    return application
