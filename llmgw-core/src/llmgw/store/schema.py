"""Every table of the store, once. Replicas are not among them: nodes report what runs.

Times are Unix seconds. Texts named `*_json` hold JSON; a column is only split out where
something is looked up or summed by it.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

SCHEMA_VERSION = "0001"
"""Newest migration. Kept here so that a start need not import Alembic to see that all is well."""

metadata = MetaData()

# SQLite numbers rows by itself only for INTEGER PRIMARY KEY; PostgreSQL needs the wide type.
_ROW_NUMBER = BigInteger().with_variant(Integer(), "sqlite")

cluster = Table(
    "cluster",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

lease = Table(
    "lease",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", Text),
    Column("term", BigInteger, nullable=False),
    Column("expires", Float, nullable=False),  # by the database's clock
)

catalog = Table(
    "catalog",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("entry_json", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
)

catalog_history = Table(
    "catalog_history",
    metadata,
    Column("version", _ROW_NUMBER, primary_key=True, autoincrement=True),
    Column("name", String(255), nullable=False, index=True),
    Column("owner", Text, nullable=False),
    Column("entry_json", Text),  # NULL: removed by this change
    Column("who", Text, nullable=False),
    Column("at", Float, nullable=False),
    # Or a rolled-back or emptied table would hand out a version, and with it an ETag, twice.
    sqlite_autoincrement=True,
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("agent_uid", Text),
    Column("machine_id", Text),
    Column("hostname", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("labels_json", Text, nullable=False),
    Column("cordoned", Text),  # the reason; NULL: not cordoned
    Column("draining", Text),  # the reason; NULL: not draining
    Column("drain_until", Float),
    Column("fenced", Text),  # the reason; NULL: not fenced
    Column("first_seen", Float, nullable=False),
    Column("last_seen", Float, nullable=False),
)

learned = Table(
    "learned",
    metadata,
    Column("key", String(512), primary_key=True),
    Column("figures_json", Text, nullable=False),
    Column("at", Float, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("secret_hash", String(64), nullable=False),
    Column("grant_json", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
)

admin_tokens = Table(
    "admin_tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("role", String(16), nullable=False),
    Column("secret_hash", String(64), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
)

usage = Table(
    "usage",
    metadata,
    Column("hour", Integer, primary_key=True),  # hours since 1970, UTC
    Column("key_id", String(32), primary_key=True),  # "": open listener
    Column("model", String(255), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
)

usage_batches = Table(
    "usage_batches",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("at", Float, nullable=False, index=True),
)

events = Table(
    "events",
    metadata,
    Column("id", _ROW_NUMBER, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False, index=True),
    Column("who", Text, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("subject", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("before_json", Text),
    Column("after_json", Text),
    sqlite_autoincrement=True,
)

join_tokens = Table(
    "join_tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("secret_hash", String(64), nullable=False),
    Column("authority", Text, nullable=False),  # PEM, public part only
    Column("pool", Text),
    Column("local_only", Boolean, nullable=False),
    Column("uses_left", Integer),  # NULL: not limited
    Column("created_at", Float, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
)

revoked_nodes = Table(
    "revoked_nodes",
    metadata,
    Column("node", String(128), primary_key=True),
    Column("reason", Text, nullable=False),
    Column("at", Float, nullable=False),
)

authorities = Table(
    "authorities",
    metadata,
    Column("id", _ROW_NUMBER, primary_key=True, autoincrement=True),
    Column("certificate", Text, nullable=False),  # PEM
    Column("sealed_key", Text, nullable=False),  # encrypted with the cluster secret
    Column("issuing", Boolean, nullable=False),  # exactly one does; the others are only trusted
    Column("created_at", Float, nullable=False),
)

Index("ix_events_subject", events.c.subject)
Index("ix_usage_key", usage.c.key_id, usage.c.hour)
