"""Connections to engines: kept, reused, and given up in time."""

from llmgw.router.pool.connection import (
    AnswerHead,
    EngineConnection,
    EngineExchange,
    EngineFailure,
)
from llmgw.router.pool.pool import ConnectionPool, Opening

__all__ = [
    "AnswerHead",
    "ConnectionPool",
    "EngineConnection",
    "EngineExchange",
    "EngineFailure",
    "Opening",
]
