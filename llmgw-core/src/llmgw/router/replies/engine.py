"""Engines' errors, read from whatever shape they have and cleaned.

Seen shapes (recorded from vLLM 0.32, SGLang 0.5.23 and llama.cpp builds of 2026):
`{"error": {...}}` (vLLM, llama.cpp), `{"object": "error", "message": ...}` (SGLang),
`{"error": "Unauthorized"}` (both, from middleware), `{"detail": ...}` (FastAPI), plain text.
"""

from __future__ import annotations

import re

import msgspec

from llmgw.errors import RequestError

_TRACE = re.compile(r"\s*\n+\s*(?:Traceback \(most recent call last\)|File \").*", re.DOTALL)
# A path of the engine's host says where it is installed and under which user. URLs and
# model names hold slashes too, so only well-known roots count.
_PATH = re.compile(
    r"(?<![\w/.:])/(?:opt|usr|home|root|var|tmp|srv|etc|mnt|data|work|workspace|Users)(?:/[^\s'\":,)\]}]+)+"
)
_MESSAGE_LIMIT = 2000

_KINDS = {
    400: "invalid_request_error",
    401: "api_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}


# The whole answer of an engine that has no such route: llama.cpp's, and FastAPI's in vLLM and SGLang.
_NO_ROUTE = frozenset({"File Not Found", "Not Found", "Method Not Allowed"})

_CODES = {429: "engine_busy", 501: "unsupported_by_engine", 503: "engine_busy"}
"""For statuses whose error names no code of its own; other 5xx are `engine_error`."""


class _Fields(msgspec.Struct):
    message: object = None
    type: object = None
    param: object = None
    code: object = None


class _Body(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw()
    detail: object = None
    message: object = None
    type: object = None
    param: object = None
    code: object = None


class EngineError(msgspec.Struct, frozen=True):
    """What an engine said was wrong."""

    status: int
    message: str
    code: str | None
    param: str | None


def read_engine_error(status: int, body: bytes) -> RequestError:
    """Return an engine's refusal in our form, its message cleaned of traces and server paths.

    The status stays, but for 401 and 403: our own credential was refused there, which is no
    fault of the client, so it becomes a 502. An error inside a 200 stream that names no
    status is a 500. No 429 and no 5xx is left without a code.
    """
    said = _read(status, body)
    if said.status in (401, 403):
        return RequestError(
            "The engine refused the router's own credential. The operator must check the "
            "endpoint's key.",
            status=502,
            code="engine_credential_refused",
            kind="api_error",
        )
    if said.status in (404, 405) and said.message in _NO_ROUTE:
        return RequestError(
            "The engine that serves this model has no such route: ask for another model, or have "
            "this one served by an engine that has it.",
            status=said.status,
            code="unsupported_by_engine",
            kind="not_found_error",
        )
    kind = _KINDS.get(said.status, "api_error" if said.status >= 500 else "invalid_request_error")
    return RequestError(
        said.message, status=said.status, code=said.code, kind=kind, param=said.param
    )


def _read(status: int, body: bytes) -> EngineError:
    try:
        parsed = msgspec.json.decode(body, type=_Body)
        fields = _inner(parsed)
    except (msgspec.DecodeError, RecursionError):
        fields = _Fields(message=body[:_MESSAGE_LIMIT].decode("utf-8", "replace"))
    if status == 200:
        status = fields.code if isinstance(fields.code, int) and 400 <= fields.code < 600 else 500
    message = clean_message(fields.message if isinstance(fields.message, str) else "")
    kind = fields.type if isinstance(fields.type, str) else ""
    return EngineError(
        status=status,
        message=message or f"The engine answered with status {status}.",
        code=_code(fields.code, kind, message) or _code_of(status),
        param=_param(fields.param),
    )


def _inner(body: _Body) -> _Fields:
    raw = bytes(body.error)
    if raw.startswith(b"{"):
        return msgspec.json.decode(raw, type=_Fields)
    if raw.startswith(b'"'):
        return _Fields(message=msgspec.json.decode(raw, type=str), code=body.code)
    if isinstance(body.detail, str):
        return _Fields(message=body.detail)
    if body.detail is not None:
        return _Fields(message=msgspec.json.encode(body.detail).decode())
    return _Fields(message=body.message, type=body.type, param=body.param, code=body.code)


def _code(code: object, kind: str, message: str) -> str | None:
    """OpenAI's `code` is a word; engines put the status there."""
    if "context" in message.lower() and (
        kind == "exceed_context_size_error" or "length" in message or "context size" in message
    ):
        return "context_length_exceeded"
    return code if isinstance(code, str) else None


def _code_of(status: int) -> str | None:
    return _CODES.get(status, "engine_error" if status >= 500 else None)


def _param(param: object) -> str | None:
    return param.removeprefix("body.") if isinstance(param, str) and param else None


def clean_message(text: str) -> str:
    """Return an engine's message without traces and paths of its machine, cut to a sane length."""
    without_trace = _TRACE.sub("", text)
    return _PATH.sub("…", without_trace)[:_MESSAGE_LIMIT].strip()
