"""Files that other programs watch: whole or not at all, and only when they differ."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from llmgw.errors import TransientError


def replace_file(path: Path, text: str) -> bool:
    """Make `path` hold exactly this text, readable by its owner only; True if it did not before.

    A reader sees the old file or the new one, never half of one. Raises TransientError naming
    the file if it cannot be written.
    """
    try:
        if path.read_text() == text:
            return False
    except FileNotFoundError:
        pass
    except OSError as error:
        raise TransientError(f"{path}: {error.strerror}") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, since a rename is atomic within one file system only.
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise TransientError(f"{path}: {error.strerror}") from error
    return True
