"""What this package supplies to llmgw."""

from __future__ import annotations

from llmgw import hookimpl
from llmgw.contracts.engine import EngineAdapter
from llmgw_engine_sglang.adapter import SglangAdapter


@hookimpl
def llmgw_engine_adapters() -> list[EngineAdapter]:
    """Supply the adapter named `sglang`."""
    return [SglangAdapter()]
