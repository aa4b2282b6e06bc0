"""The folder that a server keeps its things in, and the operator's token in it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from llmgw.config.places import ADMIN_TOKEN_FILE
from llmgw.domain.secret import Secret
from llmgw.errors import ConfigError, Problem

_PREFIX = "llmgw_admin_"


def prepare(state_dir: Path) -> None:
    """Make the folder, for this user only. Raises ConfigError if it cannot be used."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = state_dir / ".writable"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        message = f"{state_dir} cannot be written: {error.strerror}; choose another by --state-dir"
        raise ConfigError("settings", [Problem(path="state_dir", message=message)]) from error


def admin_token(state_dir: Path, file: Path | None) -> Secret:
    """Return the operator's token, made at the first start with mode 0600.

    file: None is `<state_dir>/admin.token`. Raises ConfigError for a file that is empty or that
    cannot be read: an unset token must never mean that none is needed.
    """
    path = file or state_dir / ADMIN_TOKEN_FILE
    try:
        if file is None and not path.exists():
            _write_new(path, _PREFIX + secrets.token_urlsafe(32))
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise _refusal(f"{path} cannot be read: {reason}") from error
    if not token:
        raise _refusal(f"{path} is empty; remove it to have a new one made")
    return Secret(token)


def _write_new(path: Path, text: str) -> None:
    # Complete under its name or not there at all: two servers may start at once.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # another server was faster, and its token counts
    finally:
        draft.unlink()


def _refusal(message: str) -> ConfigError:
    return ConfigError("settings", [Problem(path="auth.admin_token_file", message=message)])
