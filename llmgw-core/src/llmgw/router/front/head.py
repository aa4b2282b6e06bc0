"""Reads one request's head: what it asks for, what it brings, and whether it may be answered."""

from __future__ import annotations

import random
import re

from llmgw.errors import RequestError
from llmgw.router.front.refusals import head_too_large
from llmgw.router.ingress import Request

HEADER_COUNT_LIMIT = 100
HEAD_LIMIT = 64 * 1024

_HOST = re.compile(
    rb"(?:[A-Za-z0-9._~%!$&'()*+,;=-]+|\[[0-9A-Fa-f:.]+(?:%25[A-Za-z0-9._-]+)?\])(?::\d{0,5})?"
)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
# What engines may see of a client's head (C008). Content-Type and the request id go besides.
_PASSED = frozenset(
    {
        b"accept",
        b"traceparent",
        b"tracestate",
        b"anthropic-version",
        b"anthropic-beta",
        b"openai-beta",
        b"user-agent",
    }
)
# Request ids are for finding things again and guard nothing.
_draw = random.Random().getrandbits  # noqa: S311
_CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key"})


def read_head(request: Request) -> RequestError | None:
    """Fill in what the router needs of the headers; return why the request is refused, if it is."""
    headers = request.headers
    if len(headers) > HEADER_COUNT_LIMIT:
        return head_too_large(f"more than {HEADER_COUNT_LIMIT} headers")
    hosts = 0
    size = len(request.target)
    for name, value in headers:
        size += len(name) + len(value) + 4
        if name in _PASSED:
            request.passed += b"%b: %b\r\n" % (name, value)
        elif name == b"host":
            hosts += 1
            if not _HOST.fullmatch(value):
                return RequestError("the Host header is not valid", code="invalid_host")
        elif name in _CREDENTIALS:
            request.credentials.append(value)
        elif name == b"content-type":
            request.content_type = value
        elif name == b"content-encoding":
            request.content_encoding = value.strip().lower()
        elif name == b"expect":
            request.expects_continue = value.lower() == b"100-continue"
        elif name == b"x-request-id":
            if _REQUEST_ID.fullmatch(value):
                request.given_id = value
        elif name == b"origin":
            request.origin = value
        elif name.startswith(b"x-llmgw-"):
            _read_own(request, name, value)
    if hosts != 1 and (hosts or request.is_http11):
        return RequestError("exactly one Host header is needed", code="invalid_host")
    if size > HEAD_LIMIT:
        return head_too_large(f"more than {HEAD_LIMIT} bytes")
    return None


def new_request_id() -> bytes:
    return b"%024x" % _draw(96)


def _read_own(request: Request, name: bytes, value: bytes) -> None:
    if name == b"x-llmgw-profile":
        request.profile = value.decode("latin-1")
    elif name == b"x-llmgw-priority":
        request.priority = value.decode("latin-1")
    elif name == b"x-llmgw-explain":
        request.wants_reasons = value == b"1"
