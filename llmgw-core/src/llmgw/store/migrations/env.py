"""Alembic's entry: runs on the connection, and in the transaction, that `store.migrate` opened."""

from __future__ import annotations

from alembic import context

from llmgw.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
