"""Who asks, what that key opens, and how much of it is left."""

from llmgw.router.keys.grant import Charge, KeyGrant
from llmgw.router.keys.table import KeyTable, invalid_key

__all__ = ["Charge", "KeyGrant", "KeyTable", "invalid_key"]
