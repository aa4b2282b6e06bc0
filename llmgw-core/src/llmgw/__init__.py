"""llmgw: one OpenAI-compatible endpoint over every GPU machine you have.

This package is both the product and its framework. Public, and kept stable within a
minor version: `llmgw` (the hook markers), `llmgw.domain`, `llmgw.contracts`,
`llmgw.config.section`, `llmgw.errors` and `llmgw.testing`. All else may change.
"""

import pluggy

__all__ = ["hookimpl"]

# Made here and not in `hookspecs`, whose contracts import pydantic: `llmgw --help` has 300 ms.
hookimpl = pluggy.HookimplMarker("llmgw")
