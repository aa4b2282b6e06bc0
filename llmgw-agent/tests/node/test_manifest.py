"""What another node says that weights consist of: believed as far as it can do no harm."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.contracts.weights import FileProof
from llmgw_agent.node.weights.faults import Corrupt
from llmgw_agent.node.weights.manifest import (
    Manifest,
    describe,
    digest_of,
    disagreement,
    encode_manifest,
    pieces_of,
    read_manifest,
)

REF = "hf:org/name@main"
CONTENT = b"GGUF" + bytes(range(250))


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.gguf").write_bytes(CONTENT)
    (tmp_path / "files" / "empty.txt").touch()
    return describe(
        REF,
        data=tmp_path,
        path="files",
        names=["files/x.gguf", "files/empty.txt"],
        rest=lambda: None,
        piece_bytes=100,
    )


def test_what_is_described_is_read_back_and_cut_into_pieces(manifest: Manifest) -> None:
    data = encode_manifest(manifest)
    assert read_manifest(data, ref=REF, digest=digest_of(data)) == manifest
    pieces = list(pieces_of(manifest))
    assert [(piece.start, piece.size) for piece in pieces] == [(0, 100), (100, 100), (200, 54)]
    assert [piece.sha256 for piece in pieces] == [
        hashlib.sha256(CONTENT[start : start + 100]).hexdigest() for start in (0, 100, 200)
    ]


def test_another_list_than_the_server_named_is_refused(manifest: Manifest) -> None:
    with pytest.raises(Corrupt, match="another one than the server has named"):
        read_manifest(encode_manifest(manifest), ref=REF, digest="0" * 64)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ref": "hf:org/other@main"}, "is of"),
        ({"piece_bytes": 0}, "pieces of 0 bytes"),
        ({"piece_bytes": 1 << 40}, "pieces of"),
        ({"files": []}, "empty"),
        ({"path": "../etc"}, "the engine would be given"),
        ({"path": "elsewhere"}, "the engine would be given"),
        ({"name": "../x.gguf"}, "no plain path"),
        ({"name": "/etc/x.gguf"}, "no plain path"),
        ({"name": "files/../../x.gguf"}, "no plain path"),
        ({"name": "files//x.gguf"}, "no plain path"),
        ({"name": "files/.hidden/x.gguf"}, "no plain path"),
        ({"name": "files/x\x00.gguf"}, "no plain path"),
        ({"name": "files/model.bin"}, "can run code"),
        ({"name": "files/modeling.py"}, "can run code"),
        ({"size": -1}, "pieces for"),
        ({"size": 1000}, "pieces for"),
        ({"pieces": ["x", "y", "z"]}, "hash that is none"),
        ({"sha256": "short"}, "hash that is none"),
    ],
)
def test_a_list_that_could_do_harm_is_refused(
    manifest: Manifest, change: dict[str, Any], why: str
) -> None:
    plain: Any = msgspec.to_builtins(manifest)
    for key, value in change.items():
        (plain if key in plain else plain["files"][-1])[key] = value
    data = msgspec.json.encode(plain)
    with pytest.raises(Corrupt, match=why):
        read_manifest(data, ref=REF, digest=digest_of(data))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"ref": 1}', b"\xff\xfe"])
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        read_manifest(data, ref=REF, digest=digest_of(data))


def test_files_that_are_not_the_sources_are_told_apart(manifest: Manifest) -> None:
    empty = FileProof(size=0)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    right = {"files/empty.txt": empty, "files/x.gguf": FileProof(sha256=sha256)}
    assert disagreement(manifest, right) is None
    assert "x.gguf" in (disagreement(manifest, {"files/empty.txt": empty}) or "")
    for other in (FileProof(sha256="0" * 64), FileProof(size=1)):
        assert "x.gguf" in (disagreement(manifest, {**right, "files/x.gguf": other}) or "")
