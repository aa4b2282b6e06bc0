"""Which server, and with which token: from flags, environment, a context, or this machine.

A context is a named server in `contexts.yaml`: `{name: {server: URL, token_file: PATH, server_ca:
PATH}}`, with `current` naming the one that is used if nothing else is said.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw.config.places import ADMIN_TOKEN_FILE, default_state_dir
from llmgw.domain.secret import Secret
from llmgw.errors import ConfigError, Problem

DEFAULT_SERVER = "http://127.0.0.1:8081"
_CURRENT = "current"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where commands go."""

    server: str  #: base URL without a trailing slash
    token: Secret | None  #: None: there is none to be found; the server will say so
    server_ca: Path | None = None  #: who vouches for it; None: the machine's own roots


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What flags say; None: nothing. The environment has been looked at by then."""

    server: str | None = None
    token: str | None = None
    token_file: Path | None = None
    server_ca: Path | None = None
    context: str | None = None


def find_target(wishes: Wishes, env: Mapping[str, str]) -> Target:
    """Return where to go. Raises ConfigError naming the flag, file or context at fault."""
    context: Mapping[str, Any] = {}
    name = wishes.context
    # A server that is named by hand is not the context's; its token must not be sent there.
    if name is not None or wishes.server is None:
        context = _context(name, contexts_file(env))
    server = wishes.server or context.get("server") or DEFAULT_SERVER
    if "://" not in server:
        server = f"http://{server}"
    ca = wishes.server_ca or context.get("server_ca")
    return Target(
        server=server.rstrip("/"),
        token=_token(wishes, context, env),
        server_ca=Path(ca).expanduser() if ca else None,
    )


def contexts_file(env: Mapping[str, str]) -> Path:
    """Return where contexts are kept; the file need not be there."""
    base = Path(env.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        base = Path(env.get("HOME") or Path.home()) / ".config"
    return base / "llmgw" / "contexts.yaml"


def read_contexts(path: Path) -> tuple[dict[str, dict[str, Any]], str | None]:
    """Return all contexts by name, and the current one's name."""
    if not path.exists():
        return {}, None
    import yaml

    try:
        found = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise _problem(str(path), f"cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise _problem(str(path), "must map names to {server: URL, token_file: PATH}")
    current = found.pop(_CURRENT, None)
    contexts = {str(name): value for name, value in found.items() if isinstance(value, dict)}
    return contexts, None if current is None else str(current)


def write_contexts(
    path: Path, contexts: Mapping[str, Mapping[str, Any]], current: str | None
) -> None:
    """Replace the file, for this user only."""
    import yaml

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        yaml.safe_dump({_CURRENT: current, **contexts}, file, sort_keys=False)
    draft.replace(path)


def _context(name: str | None, path: Path) -> Mapping[str, Any]:
    contexts, current = read_contexts(path)
    chosen = name or current
    if chosen is None:
        return {}
    if chosen not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise _problem("--context", f"there is no context {chosen!r}; known: {known}")
    return contexts[chosen]


def _token(wishes: Wishes, context: Mapping[str, Any], env: Mapping[str, str]) -> Secret | None:
    if wishes.token is not None:
        return Secret(wishes.token.strip())
    named = wishes.token_file or context.get("token_file")
    if named is not None:
        path = Path(named).expanduser()
        try:
            return Secret(path.read_text().strip())
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise _problem("--token-file", f"{path} cannot be read: {reason}") from None
    if wishes.server is not None and not is_here(wishes.server):
        return None  # this machine's token is nobody else's business
    try:
        return Secret((default_state_dir(env) / ADMIN_TOKEN_FILE).read_text().strip())
    except (OSError, UnicodeDecodeError):
        return None


def is_here(server: str) -> bool:
    """Return whether a server's URL or address is on this machine."""
    from urllib.parse import urlsplit

    text = server if "://" in server else f"//{server}"
    return urlsplit(text).hostname in ("localhost", "127.0.0.1", "::1")


def _problem(path: str, message: str) -> ConfigError:
    return ConfigError("llmgw ctl", [Problem(path=path, message=message)])
