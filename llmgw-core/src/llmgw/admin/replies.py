"""Turns values and errors into answers: the only place where the admin API chooses a status."""

from __future__ import annotations

from starlette.responses import Response

from llmgw.adminapi.reply import ErrorDetail, ErrorReply, ProblemReply
from llmgw.contracts.leases import admin_url_of
from llmgw.errors import (
    ConfigError,
    LlmgwError,
    NodeUnreachable,
    NotAvailable,
    NotLeader,
    RequestError,
    StoreUnavailable,
    TransientError,
)


def error_response(error: LlmgwError) -> Response:
    """Return the answer that tells a caller of an error."""
    status, code, kind = _meaning(error)
    problems: tuple[ProblemReply, ...] = ()
    if isinstance(error, ConfigError):
        problems = tuple(
            ProblemReply(path=item.path, message=item.message) for item in error.problems
        )
    detail = ErrorDetail(
        message=str(error),
        type=kind,
        code=code,
        param=error.param if isinstance(error, RequestError) else None,
        problems=problems,
        leader_url=_leader_url(error),
    )
    headers = {}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(retry_after_s)))
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="llmgw admin"'
    return json_response(ErrorReply(error=detail).model_dump_json(), status, headers)


def status_of(error: LlmgwError) -> int:
    """Return the HTTP status that an error has."""
    return _meaning(error)[0]


def json_response(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, headers=headers, media_type="application/json")


def _leader_url(error: LlmgwError) -> str | None:
    if isinstance(error, NotLeader) and error.leader is not None:
        return admin_url_of(error.leader)
    return None


def _meaning(error: LlmgwError) -> tuple[int, str | None, str]:
    match error:
        case RequestError():
            return error.status, error.code, error.kind
        case ConfigError():
            return 400, "invalid", "invalid_request_error"
        case NotLeader():
            return 503, "not_leader", "server_error"
        case StoreUnavailable():
            return 503, "store_unavailable", "server_error"
        case NodeUnreachable():
            return 503, "node_unreachable", "server_error"
        case TransientError():
            return 503, "try_again", "server_error"
        case NotAvailable():
            return 501, "not_available", "server_error"
        case _:
            return 409, "refused", "invalid_request_error"
