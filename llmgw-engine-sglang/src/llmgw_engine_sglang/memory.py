"""What SGLang says that it took, from the lines that it prints while it starts."""

from __future__ import annotations

import re

from llmgw.domain.loads import MemoryReport

_MIB_PER_GIB = 1024.0
_WEIGHTS = re.compile(r"Load weight end\..*mem usage=([\d.]+) ?GB")
# Models with latent attention have one cache, and no K and V of their own.
_KV_CACHE = re.compile(
    r"KV Cache is allocated\..*?(?:K size: ([\d.]+) ?GB, V|, KV) size: ([\d.]+) ?GB"
)
_KV_TOKENS = re.compile(r"max_total_num_tokens=(\d+)")
_GRAPHS = re.compile(r"Capture .* end\..*mem usage=([\d.]+) ?GB")


def read_memory(lines: tuple[str, ...]) -> MemoryReport | None:
    """Return the figures of one device; of several ranks the greatest. None if there are none.

    "GB" in these lines is 2^30 bytes.
    Source: messages of 0.5.23 (`model_runner.py`, `memory_pool.py`, `scheduler.py`).
    """
    text = "\n".join(lines)
    caches = [(float(k or 0) + float(v)) * _MIB_PER_GIB for k, v in _KV_CACHE.findall(text)]
    report = MemoryReport(
        weights_mib=_most(_WEIGHTS, text),
        kv_cache_mib=max(caches, default=None),
        graphs_mib=_most(_GRAPHS, text),
        kv_cache_tokens=max(map(int, _KV_TOKENS.findall(text)), default=None),
    )
    return None if report == MemoryReport() else report


def _most(pattern: re.Pattern[str], text: str) -> float | None:
    found = [float(number) * _MIB_PER_GIB for number in pattern.findall(text)]
    return max(found, default=None)
