"""What is not hot: models, health, and the 404 and 405 of everything else. Starlette over ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as StarletteRoute

from llmgw.errors import RequestError
from llmgw.router.ingress.ingress import model_not_found
from llmgw.router.keys import KeyGrant, KeyTable
from llmgw.router.replies import Reply, error_reply
from llmgw.router.routes import COLD, HOT, ModelPlace, Route
from llmgw.router.table import ModelRoute, Table

Handler = Callable[[Request], Awaitable[Response]]


class ApiParts(Protocol):
    """The router, as this application sees it."""

    @property
    def table(self) -> Table: ...

    @property
    def keys(self) -> KeyTable: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def is_draining(self) -> bool: ...


def build_api(parts: ApiParts, prefix: str = "") -> Starlette:
    """Return the application. Each of its routes is declared in `routes.COLD`, scope included."""
    api = _Api(parts)
    paths = [prefix + route.path for route in (*HOT, *COLD) if route.model is not ModelPlace.PATH]
    handlers = {
        "list_models": api.list_models,
        "retrieve_model": api.retrieve_model,
        "health": api.health,
        "readiness": api.readiness,
    }
    application = Starlette(
        routes=[
            StarletteRoute(
                prefix + route.path.replace("{model}", "{model:path}"),
                api.guarded(route, handlers[route.operation]),
                methods=list(route.methods),
            )
            for route in COLD
        ],
        exception_handlers={HTTPException: http_errors(paths), RequestError: _request_error},  # type: ignore[dict-item]  # Starlette types handlers of subclasses too narrowly
    )
    # A redirect would be built from our inside address (C006).
    application.router.redirect_slashes = False
    return application


class _Api:
    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts

    def guarded(self, route: Route, handler: Handler) -> Handler:
        """Authorise on the route that matched, before its handler sees anything."""
        scope = route.scope
        if scope is None:
            return handler

        async def with_key(request: Request) -> Response:
            values = [
                value
                for name, value in request.scope["headers"]
                if name in (b"authorization", b"x-api-key", b"api-key")
            ]
            address = request.client.host if request.client else ""
            grant = self._parts.keys.authorise(values, address=address, scope=scope)
            if isinstance(grant, RequestError):
                raise grant
            request.state.grant = grant
            return await handler(request)

        return with_key

    async def list_models(self, request: Request) -> Response:
        grant: KeyGrant = request.state.grant
        cards = [
            _card(route, name)
            for route in self._parts.table.visible(grant.allows)
            for name in route.names
        ]
        return JSONResponse({"object": "list", "data": cards})

    async def retrieve_model(self, request: Request) -> Response:
        name: str = request.path_params["model"]
        grant: KeyGrant = request.state.grant
        route = self._parts.table.find(name)
        if route is None or not grant.allows(route):
            raise model_not_found(name)
        return JSONResponse(_card(route, name))

    async def health(self, _: Request) -> Response:
        """The process answers; whether it should get requests is `readiness`."""
        return JSONResponse({"status": "ok"})

    async def readiness(self, _: Request) -> Response:
        if self._parts.is_ready:
            return JSONResponse({"status": "ready"})
        status = "draining" if self._parts.is_draining else "no models"
        return JSONResponse({"status": status}, status_code=503)


def _card(route: ModelRoute, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": route.created,
        "owned_by": "llmgw",
    }


def _response(reply: Reply) -> Response:
    headers = {name.decode(): value.decode("latin-1") for name, value in reply.headers}
    return Response(reply.body, status_code=reply.status, headers=headers)


async def _request_error(_: Request, error: RequestError) -> Response:
    return _response(error_reply(error))


def http_errors(
    paths: Sequence[str],
) -> Callable[[Request, HTTPException], Awaitable[Response]]:
    """Return what answers in our shape where Starlette itself refuses (no such path or method).

    paths: those that there are, to name the one that was meant; `base_url` with `/v1` missing or
    doubled is the commonest mistake of clients.
    """

    async def answer(request: Request, error: HTTPException) -> Response:
        extra: Sequence[tuple[bytes, bytes]] = [
            (name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()
        ]
        code = {404: "unknown_route", 405: "method_not_allowed"}.get(error.status_code)
        path = request.scope["path"]
        shown = path[:200]
        message = {
            404: f"there is no route {shown!r}{_way_out(path, paths)}",
            405: f"{shown} does not take {request.method}",
        }.get(error.status_code, error.detail)
        return _response(
            error_reply(RequestError(message, status=error.status_code, code=code), extra=extra)
        )

    return answer


def _way_out(path: str, paths: Sequence[str]) -> str:
    tail = "/" + path.strip("/")
    meant = [one for one in paths if one.endswith(tail) or tail.endswith(one)]
    if tail != "/" and meant:
        return f"; {max(meant, key=len)!r} is meant?"
    return f"; routes are {paths[0]}, {paths[1]} and the like"
