"""What weights say of themselves, read from real headers."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from llmgw.testing.tiny_gguf import write_tiny_gguf
from llmgw_agent.node.weights.headers import read_facts

CONFIG = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def write_safetensors(path: Path, size: int) -> None:
    header = json.dumps(
        {"__metadata__": {}, "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)  # the tensors are never read


def test_a_gguf_file_says_what_its_cache_takes(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    facts = read_facts(path)
    assert facts is not None
    assert facts.weights_mib == path.stat().st_size / 2**20
    assert (facts.attention_heads, facts.max_context) == (4, 2048)
    assert facts.kv_bytes_per_token == 2 * (2 * 64) * 2  # layers, keys and values, two bytes


def test_the_parts_of_a_gguf_model_are_counted_together(tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "tiny-00001-of-00002.gguf")
    (tmp_path / "tiny-00002-of-00002.gguf").write_bytes(b"x" * 2**20)
    facts = read_facts(whole)
    assert facts is not None
    assert facts.weights_mib == whole.stat().st_size / 2**20 + 1


def test_a_folder_of_safetensors_is_read_with_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for name in ("a", "b"):
        write_safetensors(tmp_path / f"{name}.safetensors", 8 * 2**20)
    facts = read_facts(tmp_path)
    assert facts is not None
    assert (facts.weights_mib, facts.attention_heads, facts.max_context) == (16.0, 8, 4096)
    assert facts.kv_bytes_per_token == 4 * 2 * 2 * 64 * 2


@pytest.mark.parametrize(
    "content",
    [b"", b"GGUF", b"GGUF" + b"\xff" * 40, b"\x00" * 64, struct.pack("<Q", 2**60) + b"{}"],
    ids=["empty", "cut short", "huge counts", "zeros", "huge header"],
)
@pytest.mark.parametrize("name", ["x.gguf", "x.safetensors", "x.bin"])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "config.json").write_text("[]")
    (tmp_path / name).write_bytes(content)
    assert read_facts(tmp_path / name) is None
    assert read_facts(tmp_path) is None
