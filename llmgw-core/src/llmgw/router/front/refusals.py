"""What the front itself refuses, before anybody looks at what is asked. Values only."""

from __future__ import annotations

from llmgw.errors import RequestError


def body_too_large(limit: int) -> RequestError:
    return RequestError(
        f"the request body is larger than {limit} bytes (router.body_limit_mib)",
        status=413,
        code="body_too_large",
    )


def head_too_large(what: str) -> RequestError:
    return RequestError(f"the request's head has {what}", status=431, code="head_too_large")


def packed_body() -> RequestError:
    return RequestError(
        "compressed request bodies are not supported; send the body as it is",
        status=415,
        code="unsupported_content_encoding",
    )


def too_slow() -> RequestError:
    return RequestError(
        "the request did not come in whole in time", status=408, code="request_timeout"
    )


def too_many_connections() -> RequestError:
    return RequestError(
        "the router has as many connections as it may",
        status=503,
        code="too_many_connections",
        kind="api_error",
        retry_after_s=1.0,
    )


def malformed(error: Exception) -> RequestError:
    return RequestError(f"the request is not valid HTTP: {error}", code="invalid_http")


def internal() -> RequestError:
    """A bug of ours."""
    return RequestError(
        "the router failed to read the request; its log says why",
        status=500,
        code="internal_error",
        kind="api_error",
    )
