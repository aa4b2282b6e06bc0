"""The last good table on disk: with it a router serves, and checks keys, before any server answers."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from llmgw.adminapi.feed_messages import FeedSnapshot, decode_line, encode_line
from llmgw.logs import get_logger

log = get_logger(__name__)


class LastTable:
    """One file, 0600: it holds engines' credentials and the hashes of keys.

    Methods touch the disk; call them off the event loop once it serves.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> FeedSnapshot | None:
        """Return what was saved last; None if there is nothing or it cannot be read."""
        try:
            line = decode_line(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("table on disk unreadable", path=str(self._path), problem=str(error))
            return None
        return line if isinstance(line, FeedSnapshot) else None

    def save(self, snapshot: FeedSnapshot) -> None:
        """Replace the file as a whole, so that a crash leaves the old or the new one.

        A full disk is a warning: the router goes on, and would start with an older table.
        """
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(encode_line(snapshot))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            with suppress(OSError):  # it may be the very folder that is at fault
                fresh.unlink(missing_ok=True)
            log.warning("table not saved", path=str(self._path), problem=str(error))
