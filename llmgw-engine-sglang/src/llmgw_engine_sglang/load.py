"""How busy SGLang is, from its metrics page (`--enable-metrics`)."""

from __future__ import annotations

from llmgw.contracts.exposition import Exposition
from llmgw.domain.loads import EngineLoad

_RUNNING = "sglang:num_running_reqs"
_WAITING = "sglang:num_queue_reqs"
_COMPILING = "sglang:num_grammar_queue_reqs"
_KV_USED = "sglang:token_usage"
_REALTIME = "sglang:realtime_tokens_total"

#: Schedulers of one tensor- and pipeline-parallel group all report the same requests.
_FIRST = {"tp_rank": "0", "pp_rank": "0"}


def parse_load(page: str) -> EngineLoad:
    """Read one page; with data parallelism, over all of its schedulers.

    Tokens are those of the real-time counter. `prompt_tokens_total` and
    `generation_tokens_total` move only when a request ends: a long answer would look like an
    engine that is stuck.
    Raises MetricsUnreadable if either request gauge is absent.
    Source: names of 0.5.23, recorded in docs/engines/sglang.md.
    """
    seen = Exposition(page, _RUNNING, _WAITING, _COMPILING, _KV_USED, _REALTIME)
    computed = seen.total(_REALTIME, **_FIRST, mode="prefill_compute")
    cached = seen.total(_REALTIME, **_FIRST, mode="prefill_cache")
    return EngineLoad(
        running=seen.count(_RUNNING, **_FIRST),
        # A request whose grammar is being compiled waits as well.
        waiting=seen.count(_WAITING, **_FIRST) + round(seen.total(_COMPILING, **_FIRST) or 0),
        kv_used=seen.fraction(_KV_USED, **_FIRST),
        prompt_tokens=None if computed is None else computed + (cached or 0),
        generated_tokens=seen.total(_REALTIME, **_FIRST, mode="decode"),
        cached_tokens=cached,
    )
