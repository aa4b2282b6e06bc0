"""Bytes that are what their hash says, and downloads that can go on where they stopped."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from llmgw.contracts.weights import FetchContext
from llmgw_agent.node.durable import DiskFull
from llmgw_agent.node.weights.faults import Corrupt

CHUNK_BYTES = 1 << 20
IS_FULL = (errno.ENOSPC, errno.EDQUOT)
_RUNS_CODE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5", ".py")


def is_refused_name(name: str) -> bool:
    """Whether a file of this name is a pickle, or another kind that can run code when loaded."""
    return name.endswith(_RUNS_CODE)


def is_sha256(text: str) -> bool:
    """Whether `text` is a SHA-256 in hex."""
    return len(text) == 64 and all(char in "0123456789abcdef" for char in text.lower())


def sha256_of(path: Path, context: FetchContext | None = None) -> str:
    """Return the hash of a whole file. context: hears of each piece, and may cancel by it."""
    digest = hashlib.sha256()
    done, total = 0, path.stat().st_size
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
            done += len(piece)
            if context is not None:
                context.report(done, total)
    return digest.hexdigest()


def append_pieces(
    pieces: Iterable[bytes], into: IO[bytes], context: FetchContext, *, total: int | None
) -> None:
    """Write a download on, piece by piece, reporting as it goes.

    Raises DiskFull naming the room that is missing when the disk is full: what came so
    far is kept, and goes on when there is room.
    """
    try:
        for piece in pieces:
            into.write(piece)
            context.report(into.tell(), total)
        into.flush()
        os.fsync(into.fileno())
    except OSError as error:
        if error.errno in IS_FULL:
            missing = None if total is None else max(0, total - into.tell())
            raise DiskFull(full_disk(Path(into.name), missing), retry_after_s=60.0) from error
        raise


def full_disk(where: Path, missing: int | None) -> str:
    """Say that there is no room for a file. missing: bytes; None: not known."""
    usage = os.statvfs(where.parent)
    need = "an unknown number of" if missing is None else f"{missing:,}"
    return (
        f"no room on the disk for {where.name}: needs {need} bytes more, "
        f"{usage.f_bavail * usage.f_frsize:,} are free"
    )


def accept(partial: Path, final: Path, sha256: str, context: FetchContext) -> Path:
    """Move a finished download into place if its hash is right, else remove it.

    Raises Corrupt for other bytes than were asked for.
    """
    found = sha256_of(partial, context)
    if found != sha256.lower():
        partial.unlink()
        raise Corrupt(
            f"{final.name} has SHA-256 {found}, not {sha256.lower()}: the source changed, or "
            "the catalog names another file"
        )
    partial.replace(final)
    return final
