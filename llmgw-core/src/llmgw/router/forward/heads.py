"""Heads of the requests that engines get, and what of their answers' heads goes on.

Allow-lists both ways: what is not named here stops at the router (C008).
"""

from __future__ import annotations

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId
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


class EngineHeads:
    """The constant part of the head for each endpoint and path, made once."""

    def __init__(self) -> None:
        self._prefixes: dict[tuple[EndpointId, str], tuple[Endpoint, bytes]] = {}
        self._origins: dict[tuple[EndpointId, str], bytes] = {}

    def request_head(self, endpoint: Endpoint, envelope: Envelope, length: int) -> bytes:
        """Return the head for one request, its blank line included."""
        path = envelope.route.engine_path
        known = self._prefixes.get((endpoint.id, path))
        if known is None or known[0] is not endpoint:
            known = (endpoint, _prefix(endpoint, path))
            self._prefixes[endpoint.id, path] = known
        return b"%bcontent-type: %b\r\n%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
            known[1],
            envelope.content_type,
            envelope.passed_headers,
            envelope.request_id,
            length,
        )

    def origin(self, endpoint: EndpointId, model: str) -> bytes:
        """Return the headers that say where an answer came from."""
        lines = self._origins.get((endpoint, model))
        if lines is None:
            lines = b"x-llmgw-endpoint: %b\r\nx-llmgw-model: %b\r\n" % (
                endpoint.encode("ascii", "replace"),
                model.encode("ascii", "replace"),
            )
            self._origins[endpoint, model] = lines
        return lines

    def keep_only(self, endpoints: frozenset[EndpointId]) -> None:
        """Forget the heads of endpoints that are gone."""
        for key in [key for key in self._prefixes if key[0] not in endpoints]:
            del self._prefixes[key]
        for key in [key for key in self._origins if key[0] not in endpoints]:
            del self._origins[key]


def _prefix(endpoint: Endpoint, path: str) -> bytes:
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


def passed_headers(head: AnswerHead) -> bytes:
    """Return the headers of an answer that the client may see, serialised."""
    return b"".join(b"%b: %b\r\n" % item for item in head.headers if item[0] in PASSED_TO_CLIENT)


def is_framed(head: AnswerHead) -> bool:
    """Whether the end of an answer can be told from a connection that broke."""
    return any(name in (b"transfer-encoding", b"content-length") for name, _ in head.headers)


def retry_after_s(value: bytes | None) -> float:
    """Return a `Retry-After` in seconds, 1 where there is none."""
    try:
        return float(value) if value else 1.0
    except ValueError:  # a date, which no engine sends
        return 1.0
