"""Builds the admin application from its operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from llmgw.admin.api import all_operations
from llmgw.admin.audit import record_change
from llmgw.admin.auth import Authenticator
from llmgw.admin.guard import BrowserGuard
from llmgw.admin.openapi import openapi_operation
from llmgw.admin.operations import Changed, Operation, read_call
from llmgw.admin.pages.routes import page_routes
from llmgw.admin.parts import AdminParts
from llmgw.admin.replies import error_response, json_response
from llmgw.adminapi.reply import PREFIX, Reply
from llmgw.errors import LlmgwError, RequestError

Endpoint = Callable[[HttpRequest], Awaitable[Response]]


def build_admin(parts: AdminParts) -> Starlette:
    """Return the admin application: `/admin/v1`, the page at `/admin`, metrics and health.

    It may be served by several listeners at once; authentication is the same on each.
    """
    authenticator = Authenticator(parts.token, parts.store, parts.clock)
    operations = all_operations()
    declared = (*operations, openapi_operation(operations))
    # One route a path, so that a 405 names every method that the path knows.
    by_path: dict[str, list[Operation]] = {}
    for operation in declared:
        by_path.setdefault(operation.path, []).append(operation)
    routes = [_route(path, on_path, parts, authenticator) for path, on_path in by_path.items()]
    routes += page_routes(parts, authenticator)
    application = Starlette(
        routes=routes,
        middleware=[Middleware(BrowserGuard, allowed_hosts=parts.allowed_hosts)],
        exception_handlers={HTTPException: _no_such_route, Exception: _bug},
    )
    # A redirect would be built from our inside address (C006).
    application.router.redirect_slashes = False
    return application


def _route(
    path: str, operations: list[Operation], parts: AdminParts, authenticator: Authenticator
) -> Route:
    endpoints: dict[str, Endpoint] = {
        item.method: _endpoint(item, parts, authenticator) for item in operations
    }

    async def endpoint(request: HttpRequest) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await endpoints[method](request)

    whole = path if path in ROOT_PATHS else PREFIX + path
    return Route(whole, endpoint, methods=list(endpoints))


ROOT_PATHS = frozenset({"/metrics", "/healthz", "/readyz"})
"""Where monitoring expects them, not below `/admin/v1`."""


def _endpoint(operation: Operation, parts: AdminParts, authenticator: Authenticator) -> Endpoint:
    async def endpoint(request: HttpRequest) -> Response:
        try:
            call = await read_call(operation, parts, authenticator, request)
            answer = await operation.handler(call)
        except LlmgwError as error:
            return error_response(error)
        if operation.changes != isinstance(answer, Changed):
            raise TypeError(f"{operation.method} {operation.path} does not do what it declares")
        if isinstance(answer, Changed):
            await record_change(parts, call.caller.name, answer)
            return json_response(answer.reply.model_dump_json(), headers=dict(answer.headers))
        return json_response(answer.model_dump_json()) if isinstance(answer, Reply) else answer

    return endpoint


async def _no_such_route(_request: HttpRequest, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message, code = {
        404: (
            "there is nothing at this path; GET /admin/v1/openapi.json lists what is",
            "not_found",
        ),
        405: ("this path does not know this method", "method_not_allowed"),
    }.get(status, ("the request cannot be answered", "bad_request"))
    response = error_response(RequestError(message, status=status, code=code))
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response


async def _bug(_request: HttpRequest, _error: Exception) -> Response:
    # Starlette raises it again after this answer, and the listener logs it with its traceback.
    return error_response(
        RequestError(
            "the server made a mistake; its log says which",
            status=500,
            code="internal_error",
            kind="server_error",
        )
    )
