"""`llmgw store`: look after the database of a server that is stopped, or beside one that runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from llmgw import logs
from llmgw.clock import SystemClock
from llmgw.config.loading import Loaded, load_server
from llmgw.domain.secret import Secret
from llmgw.errors import PermanentError
from llmgw.store import Store, backup_store, open_store


@click.group()
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar="LLMGW_CONFIG",
    help="The server's file: says where its store is.",
)
@click.option("--state-dir", help="The server's state folder.")
@click.option("--store-url", help="The store itself.")
@click.pass_context
def store(
    ctx: click.Context, config_file: Path | None, state_dir: str | None, store_url: str | None
) -> None:
    """Look after the database of a server.

    A SQLite store has one owner: stop the server first, except for `backup`.
    """
    logs.configure()
    given = {"state_dir": state_dir, "store.url": store_url}
    flags = {path: value for path, value in given.items() if value is not None}
    ctx.obj = load_server(config_file, os.environ, flags, needs_work=False)


@store.command()
@click.pass_obj
def migrate(loaded: Loaded) -> None:
    """Bring the tables up to date; a server does so by itself when it starts.

    \b
    Example:
        llmgw store migrate
    """
    with _opened(loaded) as opened:
        click.echo(f"schema version {opened.schema_version()}")


@store.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def backup(loaded: Loaded, file: Path) -> None:
    """Write a consistent copy of a SQLite store to FILE, also while its server runs.

    \b
    Example:
        llmgw store backup llmgw-backup.db
    """
    backup_store(loaded.settings.store.url, state_dir=loaded.state_dir, target=file)
    click.echo(f"written to {file}")


@store.command()
@click.pass_obj
def check(loaded: Loaded) -> None:
    """Say what is wrong with the store; exits with 1 if anything is.

    \b
    Example:
        llmgw store check
    """
    with _opened(loaded) as opened:
        problems = opened.check()
    if problems:
        raise PermanentError("the store is damaged; restore a backup: " + "; ".join(problems))
    click.echo("ok")


@store.command("bump-epoch")
@click.pass_obj
def bump_epoch(loaded: Loaded) -> None:
    """Move past every epoch that nodes may know. Run it after each restore.

    \b
    Example:
        llmgw store bump-epoch
    """
    with _opened(loaded) as opened:
        click.echo(f"term is now {opened.bump_epoch()}")


@contextmanager
def _opened(loaded: Loaded) -> Iterator[Store]:
    settings = loaded.settings
    secret = settings.cluster_secret
    opened = open_store(
        settings.store.url,
        state_dir=loaded.state_dir,
        clock=SystemClock(),
        cluster_secret=Secret(secret.get_secret_value()) if secret else None,
        cluster_secret_file=settings.cluster_secret_file,
    )
    try:
        yield opened
    finally:
        opened.close()
