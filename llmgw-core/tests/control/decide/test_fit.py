"""How much memory a shard needs, and when that is not known."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.contracts.weightfacts import facts_of_config, facts_of_gguf, safetensors_mib
from llmgw.control.decide.fit import DemandSource, demand, kv_cache_mib
from llmgw.domain.weights import WeightFacts
from llmgw.testing import values

LLAMA_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("config", "context", "mib"),
    [
        # Grouped-query: 2 x 32 layers x 8 heads x 128 x 2 bytes = 128 KiB a token.
        (LLAMA_8B, 8192, 1024.0),
        # Every head has its own keys and values: four times as much.
        ({**LLAMA_8B, "num_key_value_heads": None}, 8192, 4096.0),
        # Latent attention: 61 layers x (512 + 64) x 2 bytes.
        (
            {
                "num_hidden_layers": 61,
                "num_attention_heads": 128,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
            },
            8192,
            549.0,
        ),
        # All layers keep a window of 4096 tokens.
        ({**LLAMA_8B, "sliding_window": 4096}, 131072, 512.0),
        ({**LLAMA_8B, "sliding_window": 4096, "use_sliding_window": False}, 8192, 1024.0),
        # Half of the layers keep a window of 1024, the others everything.
        (
            {
                **LLAMA_8B,
                "sliding_window": 1024,
                "layer_types": ["sliding_attention", "full_attention"] * 16,
            },
            8192,
            512.0 + 64.0,
        ),
        # Five of six layers keep a window.
        (
            {
                **LLAMA_8B,
                "num_hidden_layers": 6,
                "sliding_window": 1024,
                "sliding_window_pattern": 6,
            },
            8192,
            32.0 + 20.0,
        ),
        ({"text_config": LLAMA_8B}, 8192, 1024.0),
    ],
)
def test_the_cache_follows_the_model_s_kind_of_attention(
    config: dict[str, Any], context: int, mib: float
) -> None:
    facts = facts_of_config(config, weights_mib=1.0)
    assert kv_cache_mib(facts, context) == pytest.approx(mib)


def test_a_kind_of_state_that_is_not_known_is_not_guessed() -> None:
    assert (
        facts_of_config({**LLAMA_8B, "mamba_d_state": 128}, weights_mib=1.0).kv_bytes_per_token
        is None
    )
    assert facts_of_config({}, weights_mib=1.0).kv_bytes_per_token is None


def test_weights_are_as_large_as_the_files_headers_say() -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [1024, 512], "data_offsets": [0, 2**20]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [2**20, 3 * 2**20]},
    }
    assert safetensors_mib([header, header]) == 6.0


def test_a_gguf_file_says_the_same_in_its_own_words() -> None:
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 32,
        "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8,
        "llama.embedding_length": 4096,
        "llama.context_length": 8192,
    }
    facts = facts_of_gguf(metadata, file_mib=4700.0)
    assert kv_cache_mib(facts, 8192) == 1024.0
    assert (facts.max_context, facts.attention_heads) == (8192, 32)
    uneven = {**metadata, "llama.attention.head_count_kv": [8] * 16 + [0] * 16}
    assert kv_cache_mib(facts_of_gguf(uneven, file_mib=1.0), 8192) == 512.0
    hybrid = {**metadata, "llama.ssm.state_size": 16}
    assert facts_of_gguf(hybrid, file_mib=1.0).kv_bytes_per_token is None


FACTS = WeightFacts(weights_mib=16000.0, kv_bytes_per_token=131072.0, max_context=131072)


def asked(**options: object) -> Any:
    return values.profile(
        devices={"count": 2}, engine="vllm", parallel={"tensor": 2}, options=options
    )


def test_what_is_computed_is_split_over_the_devices() -> None:
    found = demand(asked(max_model_len=8192), facts=FACTS, learned_mib=None)
    assert found is not None
    assert found.source is DemandSource.COMPUTED
    assert found.memory_mib == pytest.approx(8000 + 512 + 3584)
    small = demand(asked(max_model_len=8192, kv_cache_dtype="fp8"), facts=FACTS, learned_mib=None)
    assert small is not None
    assert small.memory_mib == pytest.approx(8000 + 256 + 3584)


def test_what_was_measured_beats_what_was_computed_and_what_is_written_beats_both() -> None:
    learned = demand(asked(max_model_len=8192), facts=FACTS, learned_mib=20000.0)
    assert learned is not None
    assert (learned.source, learned.memory_mib) == (DemandSource.LEARNED, 21000.0)
    written = values.profile(devices=1)
    configured = demand(written, facts=FACTS, learned_mib=20000.0)
    assert configured is not None
    assert (configured.source, configured.memory_mib) == (DemandSource.CONFIGURED, 40960.0)


@pytest.mark.parametrize(
    "facts",
    [
        None,
        WeightFacts(),
        WeightFacts(weights_mib=16000.0),
        WeightFacts(weights_mib=16000.0, kv_bytes_per_token=1.0),
        WeightFacts(kv_bytes_per_token=1.0, max_context=8192),
    ],
)
def test_nothing_is_ever_guessed(facts: WeightFacts | None) -> None:
    assert demand(asked(), facts=facts, learned_mib=None) is None
