"""`llmgw router`: the flags of a router alone. What runs is `llmgw.server`'s business."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from llmgw.cli.server import flags_of, with_settings
from llmgw.config.places import ADMIN_TOKEN_FILE, default_state_dir
from llmgw.domain.secret import Secret
from llmgw.errors import ConfigError, Problem


@click.command()
@with_settings("agent_listen", "store.url")
@click.option(
    "--server",
    "servers",
    multiple=True,
    required=True,
    envvar="LLMGW_SERVER",
    metavar="URL[,…]",
    help="Admin listener of every server; may be given again.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="Admin token of the servers. Not needed beside a server of the same user.",
)
@click.option(
    "--server-ca",
    type=click.Path(path_type=Path),
    help="PEM file of who vouches for the servers' certificates. [the machine's own roots]",
)
def router(
    config_file: Path | None,
    servers: tuple[str, ...],
    token_file: Path | None,
    server_ca: Path | None,
    insecure_bind: bool,
    **given: Any,
) -> None:
    """Run a router alone, fed by one or more servers.

    Goes on serving the last table when no server answers. SIGTERM lets streams end, for up to
    `drain_limit` (300 s); a second one ends it at once.

    \b
    Example:
        llmgw router --server http://10.0.0.1:8081 --token-file admin.token --listen 0.0.0.0:8080
    """
    from llmgw.server.process import run_router  # `--help` needs none of it

    flags = flags_of(given, insecure_bind=insecure_bind)
    if server_ca is not None:
        flags["tls.servers_ca"] = str(server_ca.absolute())
    # Beside a server on one machine: a folder of its own, or both would keep one table.
    flags.setdefault("state_dir", str(default_state_dir(os.environ) / "router"))
    run_router(config_file, flags, servers=server_urls(servers), token=_token(token_file))


def server_urls(given: Sequence[str]) -> list[str]:
    """Return the URLs of servers; `http://` may be left out. Raises click.UsageError."""
    urls = []
    for text in ",".join(given).split(","):
        text = text.strip()
        if not text:
            continue
        if not text.startswith("unix:/"):
            text = text if "://" in text else f"http://{text}"
            parts = urlsplit(text)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise click.UsageError(
                    f"--server must be URL[,URL] such as http://10.0.0.1:8081, got {text!r}"
                )
        urls.append(text.rstrip("/"))
    if not urls:
        raise click.UsageError("--server must name at least one server")
    return urls


def _token(file: Path | None) -> Secret:
    if file is None and (text := os.environ.get("LLMGW_TOKEN", "").strip()):
        return Secret(text)
    path = file or default_state_dir(os.environ) / ADMIN_TOKEN_FILE
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read; give the servers' admin token by --token-file"
        raise ConfigError(
            "llmgw router", [Problem(path="--token-file", message=message)]
        ) from error
    if not token:
        message = f"{path} is empty; give the servers' admin token by --token-file"
        raise ConfigError("llmgw router", [Problem(path="--token-file", message=message)])
    return Secret(token)
