"""Operators' intent and the cluster's history: SQLite by default, PostgreSQL for several servers.

What runs is not here: nodes report it. One small repository per table; everything goes through
one thread with a deadline (`database`), and SQL stays inside this room.
"""

from llmgw.store.copying import backup_store
from llmgw.store.following import Follower, Listeners
from llmgw.store.store import Store, open_store

__all__ = ["Follower", "Listeners", "Store", "backup_store", "open_store"]
