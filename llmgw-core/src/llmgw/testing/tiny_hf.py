"""A chat model of 1 MB with random weights in Hugging Face's layout, and LoRA adapters for it.

Its answers are noise: for tests of vLLM and SGLang. Written by the standard library alone.
"""

from __future__ import annotations

import json
import math
import random
import struct
from pathlib import Path

_HIDDEN = 128
_HEADS = 4  # of 32: vLLM on a CPU takes no smaller head, and says so only at the first request
_KV = 64  # 2 of 4 heads
_FEED_FORWARD = 256
_LAYERS = 2
_VOCABULARY = 320
_RANK = 8
_SPECIAL = ("<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
_TEMPLATE = (
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif %}"
)

Tensors = dict[str, tuple[int, ...]]


def write_tiny_hf(folder: Path, *, context: int = 2048, seed: int = 0) -> Path:
    """Write the model into `folder`, made if need be, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "head_dim": _HIDDEN // _HEADS,
        "intermediate_size": _FEED_FORWARD,
        "max_position_embeddings": context,
        "num_attention_heads": _HEADS,
        "num_hidden_layers": _LAYERS,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": _VOCABULARY,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer.json", _tokenizer())
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "model_max_length": context,
            "chat_template": _TEMPLATE,
        },
    )
    _write_tensors(folder / "model.safetensors", _weights(), spread=0.035, seed=seed)
    return folder


def write_tiny_lora(folder: Path, *, seed: int = 1) -> Path:
    """Write an adapter for that model, loud enough to change its answers, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": _RANK,
        "lora_alpha": 2 * _RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    _write_json(folder / "adapter_config.json", config)
    tensors: Tensors = {}
    for layer in range(_LAYERS):
        for name, outputs in (("q_proj", _HIDDEN), ("v_proj", _KV)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{stem}.lora_A.weight"] = (_RANK, _HIDDEN)
            tensors[f"{stem}.lora_B.weight"] = (outputs, _RANK)
    _write_tensors(folder / "adapter_model.safetensors", tensors, spread=1.0, seed=seed)
    return folder


def _tokenizer() -> dict[str, object]:
    """Return a tokenizer of bytes, in GPT-2's printable stand-ins, without merges."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    letters = [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]
    special = [
        {
            "id": number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, text in enumerate(_SPECIAL)
    ]
    bytewise = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {**bytewise, "add_prefix_space": False},
        "post_processor": None,
        "decoder": {**bytewise, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "vocab": {text: number for number, text in enumerate((*_SPECIAL, *letters))},
            "merges": [],
        },
    }


def _weights() -> Tensors:
    tensors: Tensors = {
        "lm_head.weight": (_VOCABULARY, _HIDDEN),
        "model.embed_tokens.weight": (_VOCABULARY, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
    }
    for layer in range(_LAYERS):
        shapes: Tensors = {
            "input_layernorm": (_HIDDEN,),
            "post_attention_layernorm": (_HIDDEN,),
            "self_attn.q_proj": (_HIDDEN, _HIDDEN),
            "self_attn.k_proj": (_KV, _HIDDEN),
            "self_attn.v_proj": (_KV, _HIDDEN),
            "self_attn.o_proj": (_HIDDEN, _HIDDEN),
            "mlp.gate_proj": (_FEED_FORWARD, _HIDDEN),
            "mlp.up_proj": (_FEED_FORWARD, _HIDDEN),
            "mlp.down_proj": (_HIDDEN, _FEED_FORWARD),
        }
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = shape
    return tensors


def _write_tensors(path: Path, tensors: Tensors, *, spread: float, seed: int) -> None:
    """Write them as bfloat16. Source of the format: https://huggingface.co/docs/safetensors."""
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        begin, end = end, end + 2 * math.prod(shape)
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    draw = random.Random(seed)  # noqa: S311 - noise, not a secret
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors.items():
            for _ in range(math.prod(shape)):
                value = 1.0 if "norm" in name else draw.uniform(-spread, spread)
                out.write(struct.pack("<f", value)[2:])  # the upper half of a float32


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))
