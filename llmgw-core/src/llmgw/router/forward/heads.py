"""Heads of the requests that engines get, and what of their answers' heads goes on.

Allow-lists both ways: what is not named here stops at the router (C008).
"""

from __future__ import annotations

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import ModelName
from llmgw.router.forward.envelope import Envelope
from llmgw.router.pool import AnswerHead
from llmgw.router.pool.pool import split_url

PASSED_TO_CLIENT = frozenset(
    {
        b"content-type",
        b"content-disposition",  # file name of audio and images
        b"content-language",
        b"openai-processing-ms",
        b"x-should-retry",
    }
)
SSE_HEADERS = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"


def request_head(start: bytes, envelope: Envelope, length: int) -> bytes:
    """Return the head for one request, its blank line included. start: by `start_of_head`."""
    return b"%bcontent-type: %b\r\n%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
        start,
        envelope.content_type,
        envelope.passed_headers,
        envelope.request_id,
        length,
    )


def start_of_head(endpoint: Endpoint, path: str) -> bytes:
    """Return the part of a head that is the same for all requests to this path."""
    address = split_url(endpoint.url)
    lines = [
        f"POST {address.base_path}{path} HTTP/1.1",
        f"host: {address.authority}",
        # An answer that is looked at must be readable, and on a machine room's network
        # compressing tokens saves nothing.
        "accept-encoding: identity",
    ]
    if endpoint.credential:
        lines.append(f"authorization: Bearer {endpoint.credential.reveal()}")
    lines += [f"{name.lower()}: {value}" for name, value in endpoint.headers.items()]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def origin_headers(model: str, *endpoints: Endpoint) -> bytes:
    """Return the headers that say where an answer came from: from one, or from two by turns."""
    return b"x-llmgw-endpoint: %b\r\nx-llmgw-model: %b\r\n" % (
        ", ".join(endpoint.id for endpoint in endpoints).encode("ascii", "replace"),
        model.encode("ascii", "replace"),
    )


def passed_headers(head: AnswerHead) -> bytes:
    """Return the headers of an answer that the client may see, serialised."""
    if head.shown is None:
        head.shown = b"".join(
            b"%b: %b\r\n" % item for item in head.headers.items() if item[0] in PASSED_TO_CLIENT
        )
    return head.shown


def served_name(endpoint: Endpoint, asked: str) -> str:
    """Return what an endpoint calls the model that was asked for."""
    if asked in endpoint.adapters:
        return endpoint.adapters[ModelName(asked)]
    if endpoint.served_name is not None:
        return endpoint.served_name
    return asked if asked in endpoint.models else endpoint.models[0]


def retry_after_s(value: bytes | None) -> float:
    """Return a `Retry-After` in seconds, 1 where there is none."""
    try:
        return float(value) if value else 1.0
    except ValueError:  # a date, which no engine sends
        return 1.0
