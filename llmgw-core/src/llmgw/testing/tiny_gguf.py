"""A chat model of 1.5 MB with random weights, which llama.cpp loads in 0.1 s.

Its answers are noise: for tests of launching, streaming, metrics and errors. Written by the
standard library alone, so that no test needs numpy or the `gguf` package.
"""

from __future__ import annotations

import array
import random
import struct
import sys
from pathlib import Path
from typing import BinaryIO

_HIDDEN = 128
_HEADS = 4
_KV = 64  # 2 of 4 heads
_FEED_FORWARD = 256
_LAYERS = 2
_SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ALIGNMENT = 32

# Types of the GGUF format, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5  # kinds of tokens
_ALL_F32 = 0

Tensor = tuple[str, tuple[int, ...]]


def write_tiny_gguf(path: Path, *, context: int = 2048, seed: int = 0) -> Path:
    """Write the model to `path` and return it."""
    tokens, kinds, merges = _vocabulary()
    tensors = _tensors(len(tokens))
    draw = random.Random(seed)  # noqa: S311 - noise, not a secret
    with path.open("wb") as out:
        fields = _fields(context, tokens, kinds, merges)
        out.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields)))
        for field in fields:
            out.write(field)
        offset = 0
        for name, shape in tensors:
            out.write(_text(name) + struct.pack("<I", len(shape)))
            # The format lists the fastest dimension first.
            out.write(struct.pack(f"<{len(shape)}QIQ", *reversed(shape), _ALL_F32, offset))
            offset += _padded(4 * _size(shape))
        _pad(out)
        for name, shape in tensors:
            size = _size(shape)
            values = (
                [1.0] * size
                if "norm" in name
                else [draw.uniform(-0.035, 0.035) for _ in range(size)]
            )
            block = array.array("f", values)
            if sys.byteorder == "big":
                block.byteswap()
            block.tofile(out)
            _pad(out)
    return path


def _vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Return tokens, their kinds and merges: bytes in GPT-2's printable stand-ins, and some pairs."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    letters = [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]
    merges = [f"{pair[0]} {pair[1]}" for pair in ("th", "he", "in", "er", "an", "re")]
    words = letters + [merge.replace(" ", "") for merge in merges]
    filler = [f"<pad{number}>" for number in range(-(len(_SPECIAL) + len(words)) % 64)]
    kinds = [_CONTROL] * len(_SPECIAL) + [_NORMAL] * len(words) + [_UNUSED] * len(filler)
    return [*_SPECIAL, *words, *filler], kinds, merges


def _fields(context: int, tokens: list[str], kinds: list[int], merges: list[str]) -> list[bytes]:
    return [
        _field("general.architecture", _STRING, _text("llama")),
        _field("general.name", _STRING, _text("tiny-random")),
        _field("general.file_type", _UINT32, struct.pack("<I", _ALL_F32)),
        *(
            _field(f"llama.{name}", _UINT32, struct.pack("<I", number))
            for name, number in (
                ("context_length", context),
                ("embedding_length", _HIDDEN),
                ("block_count", _LAYERS),
                ("feed_forward_length", _FEED_FORWARD),
                ("attention.head_count", _HEADS),
                ("attention.head_count_kv", 2),
                ("rope.dimension_count", _HIDDEN // _HEADS),
                ("vocab_size", len(tokens)),
            )
        ),
        _field("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5)),
        _field("tokenizer.ggml.model", _STRING, _text("gpt2")),
        _field("tokenizer.ggml.pre", _STRING, _text("gpt-2")),
        _field("tokenizer.ggml.tokens", _ARRAY, _list(_STRING, [_text(item) for item in tokens])),
        _field(
            "tokenizer.ggml.token_type",
            _ARRAY,
            _list(_INT32, [struct.pack("<i", kind) for kind in kinds]),
        ),
        _field("tokenizer.ggml.merges", _ARRAY, _list(_STRING, [_text(item) for item in merges])),
        *(
            _field(f"tokenizer.ggml.{name}_token_id", _UINT32, struct.pack("<I", number))
            for name, number in (("unknown", 0), ("bos", 1), ("eos", 2))
        ),
        _field("tokenizer.ggml.add_bos_token", _BOOL, b"\0"),
        _field("tokenizer.chat_template", _STRING, _text(_TEMPLATE)),
    ]


def _tensors(vocabulary: int) -> list[Tensor]:
    return [
        ("token_embd.weight", (vocabulary, _HIDDEN)),
        ("output_norm.weight", (_HIDDEN,)),
        ("output.weight", (vocabulary, _HIDDEN)),
        *(
            (f"blk.{layer}.{name}.weight", shape)
            for layer in range(_LAYERS)
            for name, shape in (
                ("attn_norm", (_HIDDEN,)),
                ("ffn_norm", (_HIDDEN,)),
                ("attn_q", (_HIDDEN, _HIDDEN)),
                ("attn_k", (_KV, _HIDDEN)),
                ("attn_v", (_KV, _HIDDEN)),
                ("attn_output", (_HIDDEN, _HIDDEN)),
                ("ffn_gate", (_FEED_FORWARD, _HIDDEN)),
                ("ffn_up", (_FEED_FORWARD, _HIDDEN)),
                ("ffn_down", (_HIDDEN, _FEED_FORWARD)),
            )
        ),
    ]


def _field(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _list(kind: int, items: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _padded(size: int) -> int:
    return size + -size % _ALIGNMENT


def _pad(out: BinaryIO) -> None:
    out.write(b"\0" * (-out.tell() % _ALIGNMENT))
