"""A copy of a SQLite store for safekeeping, also while its server runs."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from llmgw.errors import ConfigError, NotAvailable, Problem, StoreUnavailable
from llmgw.store.database import parse_url


def backup_store(url: str | None, *, state_dir: Path, target: Path) -> None:
    """Write a consistent copy of the store to `target`, for its owner only.

    Neither waits for the server that uses the store nor holds it up: SQLite's log lets one
    reader see one moment while others write. Without its cluster secret, which is a file of its
    own, the copy opens nothing. url: as for `open_store`.

    Raises NotAvailable on PostgreSQL, ConfigError if there is no store or `target` exists,
    StoreUnavailable for what goes wrong in between.
    """
    parsed = parse_url(url or f"sqlite:///{state_dir.absolute() / 'llmgw.db'}")
    if parsed.get_backend_name() != "sqlite":
        raise NotAvailable("this store is on PostgreSQL; use pg_dump for a backup")
    source = Path(str(parsed.database))
    if not source.is_file():
        raise _problem(source, "is no store; name it by --state-dir, --store-url or --config")
    try:
        # Made before SQLite opens it: it would be readable for others until a chmod.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise _problem(target, "exists already; name a new file") from None
    except OSError as error:
        raise _problem(target, f"cannot be written: {error.strerror}") from None
    try:
        with closing(sqlite3.connect(source, timeout=5.0)) as connection:
            connection.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.Error as error:
        target.unlink(missing_ok=True)
        raise StoreUnavailable(f"the store could not be copied: {error}") from None


def _problem(path: Path, message: str) -> ConfigError:
    return ConfigError(str(path), [Problem(path="", message=message)])
