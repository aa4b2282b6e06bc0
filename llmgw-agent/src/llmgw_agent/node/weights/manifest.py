"""What weights consist of, to the byte, so that one node can have them from another."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from llmgw.contracts.weights import FileProof
from llmgw_agent.node.weights.faults import Corrupt
from llmgw_agent.node.weights.verify import CHUNK_BYTES, is_refused_name, is_sha256

PIECE_BYTES = 16 << 20
"""What is hashed, asked for and repeated as one."""

MANIFEST_LIMIT = 64 << 20  # of 15 TiB of weights; more is no manifest
_FILE = re.compile(r"manifest-([0-9a-f]{64})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One file."""

    name: str  #: below the cache entry's `data`, with `/`
    size: int
    sha256: str
    pieces: tuple[str, ...]  #: SHA-256 of each piece; the last one may be shorter than the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All files of one ref."""

    ref: str
    path: str  #: what an engine is given: one of the files, or a folder of them
    piece_bytes: int
    files: tuple[ManifestFile, ...]  #: by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A range of one file, with the hash that its bytes must have."""

    file: str
    start: int
    size: int
    sha256: str


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the one form that a manifest has on disk, on the wire and under its digest."""
    return msgspec.json.encode(manifest)


def digest_of(data: bytes) -> str:
    """Return what servers and nodes call a manifest by."""
    return hashlib.sha256(data).hexdigest()


def read_manifest(data: bytes, *, ref: str, digest: str) -> Manifest:
    """Read what another node says that the weights consist of. Raises Corrupt.

    digest: as a server told it. Whatever the bytes say, nothing in them leads out of the folder
    that they are put into, and no file is of a kind that runs code.
    """
    if digest_of(data) != digest:
        raise Corrupt("the list of files is another one than the server has named")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise Corrupt(f"the list of files cannot be read: {error}") from None
    if problem := _problem(manifest, ref):
        raise Corrupt(f"the list of files {problem}")
    return manifest


def pieces_of(manifest: Manifest) -> Iterator[Piece]:
    """Yield every piece in order. Empty files have none."""
    step = manifest.piece_bytes
    for file in manifest.files:
        for number, sha256 in enumerate(file.pieces):
            start = number * step
            yield Piece(
                file=file.name, start=start, size=min(step, file.size - start), sha256=sha256
            )


def disagreement(manifest: Manifest, proof: Mapping[str, FileProof]) -> str | None:
    """Return in what the files are not those that their source names; None if they may be."""
    files = {file.name: file for file in manifest.files}
    if files.keys() != proof.keys():
        return f"other files than the source has: {', '.join(sorted(files.keys() ^ proof.keys()))}"
    for name, file in files.items():
        told = proof[name]
        if told.size not in (None, file.size):
            return f"{name} has {file.size:,} bytes, and {told.size:,} at the source"
        if told.sha256 not in (None, file.sha256):
            return f"{name} has another SHA-256 than at the source"
    return None


def describe(
    ref: str,
    *,
    data: Path,
    path: str,
    names: Iterable[str],
    rest: Callable[[], None],
    piece_bytes: int = PIECE_BYTES,
) -> Manifest:
    """Read all files and return what they are. Blocks for as long as that takes.

    rest: called after each piece; what it raises ends the work.
    """
    return Manifest(
        ref=ref,
        path=path,
        piece_bytes=piece_bytes,
        files=tuple(_described(data, name, rest, piece_bytes) for name in sorted(names)),
    )


def manifest_file(home: Path) -> tuple[str, Path] | None:
    """Return digest and place of the manifest that an entry has; None: it has none yet."""
    for path in home.glob("manifest-*.json"):
        if found := _FILE.fullmatch(path.name):
            return found[1], path
    return None


def manifest_path(home: Path, digest: str) -> Path:
    return home / f"manifest-{digest}.json"


def _described(data: Path, name: str, rest: Callable[[], None], piece_bytes: int) -> ManifestFile:
    whole, pieces, size = hashlib.sha256(), [], 0
    with (data / name).open("rb") as file:
        while True:
            piece, left = hashlib.sha256(), piece_bytes
            while left and (part := file.read(min(left, CHUNK_BYTES))):
                piece.update(part)
                whole.update(part)
                left -= len(part)
            if left == piece_bytes:
                break
            pieces.append(piece.hexdigest())
            size += piece_bytes - left
            rest()
    return ManifestFile(name=name, size=size, sha256=whole.hexdigest(), pieces=tuple(pieces))


def _problem(manifest: Manifest, ref: str) -> str | None:
    if manifest.ref != ref:
        return f"is of {manifest.ref!r}"
    if not 1 <= manifest.piece_bytes <= PIECE_BYTES:
        return f"has pieces of {manifest.piece_bytes} bytes"
    names = [file.name for file in manifest.files]
    if not names or len(set(names)) != len(names):
        return "is empty, or has a name twice"
    for file in manifest.files:
        if problem := _name_problem(file.name) or _file_problem(file, manifest.piece_bytes):
            return f"has {file.name!r}, which {problem}"
    if manifest.path not in (".", *names) and not any(
        name.startswith(f"{manifest.path}/") for name in names
    ):
        return f"has no {manifest.path!r}, which the engine would be given"
    return None


def _name_problem(name: str) -> str | None:
    parts = name.split("/")
    if str(PurePosixPath(name)) != name or any(
        part in ("", "..") or part.startswith(".") or not part.isprintable() or len(part) > 200
        for part in parts
    ):
        return "is no plain path inside a folder"
    return "is of a kind that can run code" if is_refused_name(name) else None


def _file_problem(file: ManifestFile, piece_bytes: int) -> str | None:
    if file.size < 0 or len(file.pieces) != -(-file.size // piece_bytes):
        return f"has {len(file.pieces)} pieces for {file.size:,} bytes"
    if not all(is_sha256(text) for text in (file.sha256, *file.pieces)):
        return "has a hash that is none"
    return None
