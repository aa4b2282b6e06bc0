"""Connections to engines: kept, reused, and given up in time."""

from llmgw.router.pool.connection import EngineConnection, EngineExchange, EngineFailure
from llmgw.router.pool.head import AnswerHead
from llmgw.router.pool.look import LookFailed, Looks, Page
from llmgw.router.pool.pool import ConnectionPool, Opening, Unreachable

__all__ = [
    "AnswerHead",
    "ConnectionPool",
    "EngineConnection",
    "EngineExchange",
    "EngineFailure",
    "LookFailed",
    "Looks",
    "Opening",
    "Page",
    "Unreachable",
]
