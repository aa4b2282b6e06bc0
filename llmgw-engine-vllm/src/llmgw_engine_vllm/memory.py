"""What vLLM says that it took, from the lines that it prints while it starts."""

from __future__ import annotations

import re

from llmgw.domain.loads import MemoryReport

_MIB_PER_GIB = 1024.0
_WEIGHTS = re.compile(r"Model loading took ([\d.]+) GiB")
_KV_CACHE = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_GRAPHS = re.compile(r"Graph capturing finished in \d+ secs, took ([\d.]+) GiB")
# On a CPU. A cache that it sized by itself is left out: it takes what is there, more or less.
_CHECKPOINT = re.compile(r"Checkpoint size: ([\d.]+) GiB")
_MAIN_MEMORY_CACHE = re.compile(r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache")
_ACTIVATION = re.compile(r"(?:PyTorch )?activation peak memory takes ([\d.]+) ?GiB")


def read_memory(lines: tuple[str, ...]) -> MemoryReport | None:
    """Return the figures of one device; of several ranks the greatest. None if there are none.

    Source: messages of 0.32.0 (`gpu_worker.py`, `gpu_model_runner.py`, `kv_cache_utils.py`,
    `cpu_worker.py`, `weight_utils.py`).
    """
    text = "\n".join(lines)
    cache = _most(_MAIN_MEMORY_CACHE, text)
    tokens = [int(number.replace(",", "")) for number in _KV_TOKENS.findall(text)]
    report = MemoryReport(
        weights_mib=_most(_WEIGHTS, text),
        kv_cache_mib=_most(_KV_CACHE, text),
        activation_mib=_most(_ACTIVATION, text),
        graphs_mib=_most(_GRAPHS, text),
        kv_cache_tokens=max(tokens, default=None),
        main_memory_mib=None if cache is None else cache + (_most(_CHECKPOINT, text) or 0.0),
    )
    return None if report == MemoryReport() else report


def _most(pattern: re.Pattern[str], text: str) -> float | None:
    found = [float(number) * _MIB_PER_GIB for number in pattern.findall(text)]
    return max(found, default=None)
