"""How busy llama.cpp is, from its metrics page (`--metrics`)."""

from __future__ import annotations

from llmgw.contracts.exposition import Exposition
from llmgw.domain.loads import EngineLoad

_RUNNING = "llamacpp:requests_processing"
_WAITING = "llamacpp:requests_deferred"
_PROMPT = "llamacpp:prompt_tokens_total"
_CACHED = "llamacpp:prompt_tokens_cached_total"
_GENERATED = "llamacpp:tokens_predicted_total"
_KV_USED = "llamacpp:kv_cache_usage_ratio"


def parse_load(page: str) -> EngineLoad:
    """Read one page.

    The use of the context is None in versions after build 8000 or so, which dropped the gauge;
    `/slots` would tell it, but asking there wakes a sleeping model.
    Raises MetricsUnreadable if either request gauge is absent.
    Source: gauge names of build 11549, recorded in docs/engines/llamacpp.md.
    """
    seen = Exposition(page, _RUNNING, _WAITING, _PROMPT, _CACHED, _GENERATED, _KV_USED)
    return EngineLoad(
        running=seen.count(_RUNNING),
        waiting=seen.count(_WAITING),
        kv_used=seen.fraction(_KV_USED),
        prompt_tokens=seen.total(_PROMPT),
        generated_tokens=seen.total(_GENERATED),
        cached_tokens=seen.total(_CACHED),
    )
