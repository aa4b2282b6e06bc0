"""An operation of the admin API: path, right, shapes and handler, declared in one value.

Routes and the OpenAPI document are both made from these, so neither can say what the other does
not do. An operation that changes something answers with `Changed`, which is how every change
gets its audit event.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from llmgw.admin.auth import Authenticator, Caller
from llmgw.admin.parts import AdminParts
from llmgw.adminapi.reply import Reply, Request
from llmgw.config.problems import problems_of
from llmgw.errors import ConfigError, NotAvailable, Problem, RequestError
from llmgw.store import Store
from llmgw.store.tokens import Role

T = TypeVar("T", bound=BaseModel)
BODY_LIMIT_BYTES = 4 * 1024 * 1024

Method = Literal["GET", "POST", "PUT", "DELETE"]


class NoQuery(Request):
    """Takes no query parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The answer of an operation that changed something, with its audit event."""

    reply: Reply
    kind: str
    subject: str
    message: str
    before: object = None
    after: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    happened: bool = True  #: False: all was so already, and there is nothing to record


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request that has passed authentication and validation."""

    parts: AdminParts
    caller: Caller
    authenticator: Authenticator
    request: HttpRequest
    query: BaseModel
    body: BaseModel | None
    path_values: Mapping[str, str] | None = None  #: in place of the request's own path

    def path(self, name: str) -> str:
        """Return a part of the path, decoded."""
        values = self.request.path_params if self.path_values is None else self.path_values
        return str(values[name])

    def query_as(self, kind: type[T]) -> T:
        """Return the query; its type is the one that the operation declares."""
        if not isinstance(self.query, kind):
            raise TypeError(f"the operation declares {type(self.query)}, not {kind}")
        return self.query

    def body_as(self, kind: type[T]) -> T:
        """Return the body; its type is the one that the operation declares."""
        if not isinstance(self.body, kind):
            raise TypeError(f"the operation declares {type(self.body)}, not {kind}")
        return self.body

    @property
    def store(self) -> Store:
        """Return the store. Raises NotAvailable if this server keeps none."""
        if self.parts.store is None:
            raise NotAvailable(
                "this server keeps no store; set store.url, or run it with a control plane"
            )
        return self.parts.store


Answer = Reply | Changed | Response
Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method on one path."""

    method: Method
    path: str  #: below `/admin/v1`, in Starlette's form
    role: Role | None  #: the least that may use it; None: anybody, and it gives nothing away
    summary: str
    handler: Handler
    reply: type[Reply] | None = None  #: None: a stream or a text, of `media_type`
    query: type[Request] = NoQuery
    body: type[Request] | None = None
    media_type: str = "application/json"
    changes: bool = False  #: answers with Changed; every operation that changes something does
    errors: Sequence[int] = ()  #: statuses of its own, besides those that all have


async def read_call(
    operation: Operation, parts: AdminParts, authenticator: Authenticator, request: HttpRequest
) -> Call:
    """Authenticate, authorise, then read query and body, in this order.

    Raises RequestError 401, 403, 413 or 415, and ConfigError with every problem of the input.
    """
    caller = Caller(name="anybody", role=Role.VIEWER)
    if operation.role is not None:
        address = request.client.host if request.client else ""
        caller = await authenticator.caller(request.headers.get("authorization"), address=address)
        if not caller.may(operation.role):
            raise RequestError(
                f"this needs the role {operation.role.value}; the token {caller.name!r} has "
                f"{caller.role.value}",
                status=403,
                code="forbidden",
                kind="permission_error",
            )
    query = _query(operation.query, request)
    body = None if operation.body is None else await read_json(operation.body, request)
    return Call(
        parts=parts,
        caller=caller,
        authenticator=authenticator,
        request=request,
        query=query,
        body=body,
    )


def _query(kind: type[Request], request: HttpRequest) -> Request:
    values: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in values:
            raise ConfigError("query", [Problem(path=name, message="is given more than once")])
        values[name] = value
    return validated(kind, values, "query")


async def read_json(kind: type[Request], request: HttpRequest) -> Request:
    """Return the body as a value. Raises RequestError 413 or 415, ConfigError for what is wrong."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RequestError(
            "the body must be JSON, with content-type: application/json",
            status=415,
            code="unsupported_media_type",
        )
    try:
        # Strict: in JSON, false is no number and "5" neither.
        return kind.model_validate_json(await read_body(request), strict=True)
    except ValidationError as error:
        raise ConfigError("body", _problems(error, kind)) from None


async def read_body(request: HttpRequest) -> bytes:
    """Return the whole body. Raises RequestError 413 if it is too large."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > BODY_LIMIT_BYTES:
            raise RequestError(
                f"the body is larger than {BODY_LIMIT_BYTES // 1024 // 1024} MiB",
                status=413,
                code="too_large",
            )
        chunks.append(chunk)
    return b"".join(chunks)


def validated(kind: type[Request], value: Any, source: str) -> Request:
    """Read what was sent. Raises ConfigError with every problem, paths relative to `source`."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise ConfigError(source, _problems(error, kind)) from None


def _problems(error: ValidationError, kind: type[Request]) -> list[Problem]:
    return problems_of(error, kind, lambda _: "")
