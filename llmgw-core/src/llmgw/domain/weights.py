"""What is known of some weights without loading them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts:
    """What file headers and the model's own configuration say. None: not known, never 0."""

    weights_mib: float | None = None  #: tensors by dtype, all shards together
    kv_bytes_per_token: float | None = None  #: of layers that keep all tokens
    windowed_bytes_per_token: float = 0.0  #: of layers that keep the last `sliding_window`
    sliding_window: int | None = None  #: tokens
    attention_heads: int | None = None
    max_context: int | None = None
    disk_mib: float | None = None


def is_local(ref: str) -> bool:
    """Return whether these are files of the node's owner, used where they lie and never copied."""
    return ref.startswith("path:")
