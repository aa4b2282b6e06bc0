"""`llmgw debug bundle`."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmgw.errors import PermanentError

if TYPE_CHECKING:
    from llmgw.cli.debug.gather import Part

_FILE = click.Path(path_type=Path)


@click.group()
def debug() -> None:
    """Look inside a running server."""


@debug.command()
@click.option("--server", envvar="LLMGW_SERVER", metavar="URL", help="Admin address of a server.")
@click.option("--token-file", envvar="LLMGW_TOKEN_FILE", type=_FILE, help="File with its token.")
@click.option("--context", envvar="LLMGW_CONTEXT", help="A named server (`llmgw ctl contexts`).")
@click.option("--config", type=_FILE, envvar="LLMGW_CONFIG", help="File of the server's settings.")
@click.option(
    "-o", "--output", type=_FILE, help="File to write.  [default: llmgw-debug-TIME.tar.gz]"
)
def bundle(
    server: str | None,
    token_file: Path | None,
    context: str | None,
    config: Path | None,
    output: Path | None,
) -> None:
    """Put what somebody who is to help needs into one file.

    Settings, status, nodes, replicas, events, metrics, newest log lines and versions, with keys,
    tokens and passwords masked. What cannot be had is listed in problems.txt. Look through it
    before you pass it on: names of models and machines stay.

    \b
    Example:
        llmgw debug bundle
        llmgw debug bundle --server http://gw:8081 --token-file ops.token -o gw.tar.gz
    """
    from llmgw.cli.debug.gather import gather
    from llmgw.ctl.client import Client
    from llmgw.ctl.target import Wishes, find_target

    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    file = output or Path(f"llmgw-debug-{stamp}.tar.gz")
    token = os.environ.get("LLMGW_TOKEN")
    wishes = Wishes(server=server, token=token, token_file=token_file, context=context)
    client = Client(find_target(wishes, os.environ))
    try:
        problems = _write(file, gather(client, config), folder=f"llmgw-debug-{stamp}")
    finally:
        client.close()
    for problem in problems:
        click.echo(f"llmgw: left out {problem}", err=True)
    click.echo(file)


def _write(file: Path, parts: Iterable[Part], *, folder: str) -> list[str]:
    """Write the archive, for this user only; return what is missing of it, and why."""
    problems = []
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for part in parts:
                if part.problem:
                    problems.append(f"{part.name}: {part.problem}")
                else:
                    _add(archive, f"{folder}/{part.name}", part.text)
            _add(archive, f"{folder}/problems.txt", "".join(f"{item}\n" for item in problems))
    except OSError as error:
        raise PermanentError(f"{file} cannot be written: {error.strerror}") from None
    return problems


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))
