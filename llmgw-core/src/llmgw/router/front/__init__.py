"""The socket that clients meet: HTTP/1.1 with limits, given to uvicorn as its protocol class."""

from llmgw.router.front.connection import Connection, exchanges
from llmgw.router.front.cors import Cors
from llmgw.router.front.front import Front, Limits

__all__ = ["Connection", "Cors", "Front", "Limits", "exchanges"]
