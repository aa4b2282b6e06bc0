"""What llama.cpp says that it took, from the lines that it prints while it starts.

By default the builds of this year print none; our launcher then says what its process holds. With
`-lv 4`, and in older builds always, there is a line for each buffer.
"""

from __future__ import annotations

import re
from collections import defaultdict

from llmgw.domain.loads import MemoryReport

_BUFFER = re.compile(r"(\S+)\s+(model|KV|compute|output) buffer size =\s+([\d.]+) MiB")
_RESIDENT = re.compile(r"^llmgw: ([\d.]+) MiB resident$", re.MULTILINE)
_IS_MAIN_MEMORY = re.compile(r"CPU.*|.*_Host")
_MAIN_MEMORY = "CPU"


def read_memory(lines: tuple[str, ...]) -> MemoryReport | None:
    """Return the figures of one device; of several the greatest. None if there are none.

    Source: `load_tensors`, `llama_kv_cache`, `llama_context`, `sched_reserve` of b10434, b11549.
    """
    text = "\n".join(lines)
    sizes: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for place, what, mib in _BUFFER.findall(text):
        device = _MAIN_MEMORY if _IS_MAIN_MEMORY.fullmatch(place) else place
        sizes[device][what] += float(mib)
    own = sizes.pop(_MAIN_MEMORY, None)
    resident = [float(mib) for mib in _RESIDENT.findall(text)]
    report = MemoryReport(
        weights_mib=max((item["model"] for item in sizes.values()), default=None),
        kv_cache_mib=max((item["KV"] for item in sizes.values()), default=None),
        activation_mib=max((item["compute"] for item in sizes.values()), default=None),
        main_memory_mib=resident[-1] if resident else sum(own.values()) if own else None,
    )
    return None if report == MemoryReport() else report
