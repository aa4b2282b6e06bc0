"""How busy vLLM is, from its metrics page."""

from __future__ import annotations

from llmgw.contracts.exposition import Exposition
from llmgw.domain.loads import EngineLoad

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # newer name first
_PROMPT = "vllm:prompt_tokens_total"
_GENERATED = "vllm:generation_tokens_total"
_CACHED = ("vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total")


def parse_load(page: str) -> EngineLoad:
    """Read one page; with data parallelism, over all of its engines.

    The use of the KV cache is a fraction in spite of its name. Gauges are refreshed by the
    engine's loop and not by the scrape: right after a burst they may still say 0.
    Raises MetricsUnreadable if either request gauge is absent.
    Source: gauge names of 0.32.0, recorded in docs/engines/vllm.md.
    """
    seen = Exposition(page, _RUNNING, _WAITING, *_KV_USED, _PROMPT, _GENERATED, *_CACHED)
    return EngineLoad(
        running=seen.count(_RUNNING),
        waiting=seen.count(_WAITING),
        kv_used=seen.fraction(*_KV_USED),
        prompt_tokens=seen.total(_PROMPT),
        generated_tokens=seen.total(_GENERATED),
        cached_tokens=seen.total(*_CACHED),
    )
