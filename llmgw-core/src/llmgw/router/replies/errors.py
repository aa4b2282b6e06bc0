"""Our own errors in the shape that each client library reads.

`RequestError` becomes an HTTP reply here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from llmgw.errors import RequestError
from llmgw.router.routes import Dialect

Headers = Sequence[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")

# Anthropic's libraries choose their exception by this word and the status.
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer made by the router."""

    status: int
    body: bytes
    headers: Headers = ()


def error_body(error: RequestError, dialect: Dialect = Dialect.OPENAI) -> bytes:
    """Return the JSON body: OpenAI's `{"error": {message, type, param, code}}`, or Anthropic's."""
    if dialect is Dialect.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(
            error.status, "api_error" if error.status >= 500 else "invalid_request_error"
        )
        return msgspec.json.encode(
            {"type": "error", "error": {"type": kind, "message": error.message}}
        )
    return msgspec.json.encode(
        {
            "error": {
                "message": error.message,
                "type": error.kind,
                "param": error.param,
                "code": error.code,
            }
        }
    )


def error_reply(
    error: RequestError, dialect: Dialect = Dialect.OPENAI, extra: Headers = ()
) -> Reply:
    """Return the whole reply for an error before the first byte of an answer."""
    headers = [_JSON, *extra]
    if error.retry_after_s is not None:
        # Whole seconds of at least 1 (C028): libraries read 0 and fractions as "at once".
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.status in (400, 404, 405, 413, 415, 422):
        # Official SDKs repeat 408, 409, 429 and 5xx by themselves; this stops those that
        # repeat more.
        headers.append((b"x-should-retry", b"false"))
    return Reply(error.status, error_body(error, dialect), headers)


def error_event(error: RequestError, dialect: Dialect = Dialect.OPENAI) -> bytes:
    """Return the one event that ends a stream which failed after its first byte (C015)."""
    body = error_body(error, dialect)
    if dialect is Dialect.ANTHROPIC:
        return b"event: error\ndata: " + body + b"\n\n"
    return b"data: " + body + b"\n\n"


def bad_gateway(message: str, code: str) -> RequestError:
    """Return a 502: an engine was tried and gave no usable answer."""
    return RequestError(message, status=502, code=code, kind="api_error")


def engine_lost() -> RequestError:
    """Return the error for an engine that went away during its answer."""
    return bad_gateway(
        "The engine went away in the middle of its answer. What came before is incomplete.",
        "engine_lost",
    )


def gateway_timeout(message: str, code: str) -> RequestError:
    """Return a 504: a limit of the router's expired; the code names which."""
    return RequestError(message, status=504, code=code, kind="timeout_error")
