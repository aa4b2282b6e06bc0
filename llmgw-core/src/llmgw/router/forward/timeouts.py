"""How long the first byte may take, and what a client is told when a deadline is over."""

from __future__ import annotations

from llmgw.config.server import Deadlines
from llmgw.errors import RequestError
from llmgw.router.replies import gateway_timeout


def whole_request(limits: Deadlines) -> RequestError:
    return gateway_timeout(
        f"The request took longer than the limit of {limits.whole_request:g} s "
        "(router.deadlines.whole_request).",
        "whole_request_timeout",
    )


def first_byte_limit_s(limits: Deadlines, body_bytes: int) -> float:
    """Return how long an engine may take over a prompt of this size before it says anything."""
    prompt_tokens = body_bytes / 4
    return min(limits.first_byte_max, max(limits.first_byte_min, 10 + prompt_tokens / 500))


def first_byte(limit_s: float) -> RequestError:
    return gateway_timeout(
        f"The engine sent nothing within {limit_s:g} s (router.deadlines.first_byte_min).",
        "first_byte_timeout",
    )


def between_chunks(limits: Deadlines) -> RequestError:
    return gateway_timeout(
        f"The engine fell silent for {limits.between_chunks:g} s in the middle of its answer "
        "(router.deadlines.between_chunks).",
        "between_chunks_timeout",
    )
