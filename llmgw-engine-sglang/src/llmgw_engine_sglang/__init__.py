"""SGLang as an engine of llmgw: `plugin` is the door, `adapter` the house behind it."""
