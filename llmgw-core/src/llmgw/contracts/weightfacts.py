"""What weights say of themselves, from headers that somebody else has read.

A figure that cannot be derived for sure stays None: the estimate then refuses to guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmgw.domain.weights import WeightFacts

_MIB = 2**20
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Keys of models whose state is not a cache of keys and values; their size is not derived here.
_OTHER_STATE = (
    "mamba_d_state",
    "ssm_state_size",
    "mamba_d_conv",
    "linear_num_value_heads",
    "ssm_cfg",
)


def safetensors_mib(headers: Iterable[Mapping[str, Any]]) -> float:
    """Return the tensors' size from the JSON headers of all files, exact.

    Source: https://github.com/huggingface/safetensors#format (`data_offsets` are bytes).
    """
    size = 0
    for header in headers:
        for name, tensor in header.items():
            if name != "__metadata__":
                first, end = tensor["data_offsets"]
                size += end - first
    return size / _MIB


def facts_of_config(config: Mapping[str, Any], *, weights_mib: float | None) -> WeightFacts:
    """Return the facts of a model folder: its `config.json` and the size of its tensors.

    Multimodal models keep the language model's figures in `text_config`.
    """
    text = {**config, **(config.get("text_config") or {})}
    heads = _whole(text.get("num_attention_heads"))
    full, windowed = _cache_per_token(text, heads)
    return WeightFacts(
        weights_mib=weights_mib,
        kv_bytes_per_token=full,
        windowed_bytes_per_token=windowed,
        sliding_window=_whole(text.get("sliding_window")),
        attention_heads=heads,
        max_context=_whole(text.get("max_position_embeddings")),
        disk_mib=weights_mib,
    )


def _cache_per_token(text: Mapping[str, Any], heads: int | None) -> tuple[float | None, float]:
    """Return bytes per token of layers that keep all tokens, and of those that keep a window."""
    layers = _whole(text.get("num_hidden_layers"))
    if layers is None or any(text.get(key) is not None for key in _OTHER_STATE):
        return None, 0.0
    size = _DTYPE_BYTES.get(str(text.get("dtype") or text.get("torch_dtype") or "bfloat16"), 2)
    if (latent := _whole(text.get("kv_lora_rank"))) is not None:
        # Latent attention keeps one compressed vector and the rotary part, not keys and values.
        rope = _whole(text.get("qk_rope_head_dim")) or 0
        return float(layers * (latent + rope) * size), 0.0
    kv_heads = _whole(text.get("num_key_value_heads")) or heads
    hidden = _whole(text.get("hidden_size"))
    head_dim = _whole(text.get("head_dim")) or (hidden // heads if hidden and heads else None)
    if kv_heads is None or head_dim is None:
        return None, 0.0
    per_layer = 2 * kv_heads * head_dim * size
    window_layers = _window_layers(text, layers)
    return float((layers - window_layers) * per_layer), float(window_layers * per_layer)


def _window_layers(text: Mapping[str, Any], layers: int) -> int:
    if _whole(text.get("sliding_window")) is None or text.get("use_sliding_window") is False:
        return 0
    kinds = text.get("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        return sum(kind == "sliding_attention" for kind in kinds)
    if (pattern := _whole(text.get("sliding_window_pattern"))) is not None:
        return layers - layers // pattern  # every n-th layer keeps all
    return layers


def facts_of_gguf(metadata: Mapping[str, Any], *, file_mib: float) -> WeightFacts:
    """Return the facts of a GGUF file from its metadata and size.

    Windowed layers are counted as if they kept everything: which of them are is not in the
    metadata of all files, and too much is the safe side.
    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    kind = str(metadata.get("general.architecture", ""))

    def figure(name: str) -> int | None:
        return _whole(metadata.get(f"{kind}.{name}"))

    layers, heads = figure("block_count"), figure("attention.head_count")
    width = figure("embedding_length")
    head_dim = width // heads if width and heads else None
    key_dim = figure("attention.key_length") or head_dim
    value_dim = figure("attention.value_length") or head_dim
    kv_heads = metadata.get(f"{kind}.attention.head_count_kv", heads)
    per_token: float | None = None
    stateful = any(".ssm." in key for key in metadata)
    if layers and key_dim and value_dim and kv_heads is not None and not stateful:
        per_layer = kv_heads if isinstance(kv_heads, Sequence) else [kv_heads] * layers
        per_token = float(sum(per_layer) * (key_dim + value_dim) * 2)
    return WeightFacts(
        weights_mib=file_mib,
        kv_bytes_per_token=per_token,
        attention_heads=heads,
        max_context=figure("context_length"),
        disk_mib=file_mib,
    )


def _whole(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return None
