"""What clients get when there is no answer of an engine to pass on."""

from llmgw.router.replies.engine import EngineError, read_engine_error
from llmgw.router.replies.errors import (
    Reply,
    bad_gateway,
    engine_lost,
    error_body,
    error_event,
    error_reply,
    gateway_timeout,
)

__all__ = [
    "EngineError",
    "Reply",
    "bad_gateway",
    "engine_lost",
    "error_body",
    "error_event",
    "error_reply",
    "gateway_timeout",
    "read_engine_error",
]
