"""Brings a store's tables to the version that this program knows."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from llmgw.errors import ConfigError, Problem
from llmgw.store.database import take_exclusively, translated
from llmgw.store.schema import SCHEMA_VERSION

_MIGRATIONS = Path(__file__).parent / "migrations"


def stored_version(connection: sa.Connection) -> str | None:
    """Return the version of the tables as they are; None for an empty database."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def migrate(engine: sa.Engine) -> str | None:
    """Upgrade the tables in one transaction; return the version found, None if there were none.

    Raises ConfigError if they were written by a newer llmgw. Safe for several servers that
    start at once. Alembic is imported only if there is something to do: it costs 0.2 s.
    """
    with translated(), engine.connect() as plain:
        # A migration of a large table may take longer than the limits of daily work.
        connection = plain.execution_options(llmgw_limits=False, llmgw_write=False)
        with connection.begin():
            found = stored_version(connection)
        if found == SCHEMA_VERSION:
            return found
        connection = connection.execution_options(llmgw_write=True)
        with connection.begin():
            take_exclusively(connection)
            found = stored_version(connection)
            if found != SCHEMA_VERSION:
                _upgrade(connection, found)
            return found


def _upgrade(connection: sa.Connection, found: str | None) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise ConfigError(
            "store.url",
            [
                Problem(
                    path="store.url",
                    message=f"the store has version {found}, this llmgw knows up to "
                    f"{SCHEMA_VERSION}; install the newer llmgw again, or restore a backup",
                )
            ],
        )
    command.upgrade(config, "head")
