"""Reads what weights say of themselves: a few kilobytes at the front of each file, never tensors."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from llmgw.contracts.weightfacts import facts_of_config, facts_of_gguf, safetensors_mib
from llmgw.domain.weights import WeightFacts

_HEADER_LIMIT = 100 << 20  # the format's own limit for a safetensors header
_STRING_LIMIT = 64 << 20
_LIST_LIMIT = 4096  # longer ones are vocabularies, which decide nothing
_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
_FORMATS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _LIST = 8, 9


class Unreadable(ValueError):
    """A file is not of the format that its name says."""


def read_facts(path: Path) -> WeightFacts | None:
    """Return the facts of a file or folder of weights; None if it is of no known format.

    May block on a disk: to be called on a thread.
    """
    try:
        if path.is_dir():
            return _folder(path)
        return _gguf(path) if path.suffix == ".gguf" else None
    except (OSError, Unreadable, ValueError, KeyError, TypeError, struct.error):
        # What is wrong with them is for the engine to say; here they are only not known.
        return None


def _folder(folder: Path) -> WeightFacts | None:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        parts = sorted(folder.glob("*.gguf"))
        return _gguf(parts[0]) if parts else None
    config = json.loads((folder / "config.json").read_bytes())
    if not isinstance(config, Mapping):
        raise Unreadable("config.json is no object")
    return facts_of_config(config, weights_mib=safetensors_mib(map(_safetensors, files)))


def _safetensors(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > _HEADER_LIMIT:
            raise Unreadable(f"{path.name}: a header of {size} bytes")
        header = json.loads(file.read(size))
    if not isinstance(header, Mapping):
        raise Unreadable(f"{path.name}: the header is no object")
    return header


def _gguf(path: Path) -> WeightFacts:
    with path.open("rb") as file:
        metadata = dict(_metadata(file))
    return facts_of_gguf(
        metadata, file_mib=sum(item.stat().st_size for item in _parts(path)) / 2**20
    )


def _parts(path: Path) -> list[Path]:
    """Return all files of a model that is split over several."""
    found = _PART.fullmatch(path.name)
    if found is None:
        return [path]
    return sorted(path.parent.glob(f"{found[1]}-?????-of-{found[2]}.gguf"))


def _metadata(file: IO[bytes]) -> Iterator[tuple[str, object]]:
    """Yield keys and values. Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""
    magic, version, _, count = struct.unpack("<4sIQQ", file.read(24))
    if magic != b"GGUF" or version not in (2, 3):
        raise Unreadable("no GGUF file of version 2 or 3")
    for _ in range(count):
        key = _string(file)
        yield key, _value(file, _number(file, "<I"))


def _value(file: IO[bytes], kind: int) -> object:
    if kind == _STRING:
        return _string(file)
    if kind != _LIST:
        return _number(file, _FORMATS[kind])
    kind, length = _number(file, "<I"), _number(file, "<Q")
    if kind in _FORMATS and length > _LIST_LIMIT:
        file.seek(struct.calcsize(_FORMATS[kind]) * length, 1)
        return None
    values = (_value(file, kind) for _ in range(length))
    if length > _LIST_LIMIT:
        for _ in values:
            pass
        return None
    return list(values)


def _number(file: IO[bytes], form: str) -> Any:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def _string(file: IO[bytes]) -> str:
    size = _number(file, "<Q")
    if size > _STRING_LIMIT:
        raise Unreadable(f"a text of {size} bytes")
    return file.read(size).decode(errors="replace")
