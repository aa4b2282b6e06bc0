"""How busy an engine is and what it takes, in one shape for all engines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """One reading of an engine's metrics page. None: the engine does not say (never 0, C059)."""

    running: int | None  #: requests being computed
    waiting: int | None  #: requests queued inside the engine
    kv_used: float | None = None  #: 0.0 to 1.0
    prompt_tokens: float | None = None  #: total since the engine's start
    generated_tokens: float | None = None  #: likewise
    cached_tokens: float | None = None  #: prompt tokens found in the prefix cache, likewise

    @property
    def progress(self) -> float | None:
        """A number that moves while the engine computes; None if it cannot be known."""
        counts = [
            count for count in (self.prompt_tokens, self.generated_tokens) if count is not None
        ]
        return sum(counts) if counts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """What an engine says that it took, in MiB per device; None: it does not say."""

    weights_mib: float | None = None
    kv_cache_mib: float | None = None
    activation_mib: float | None = None
    graphs_mib: float | None = None
    kv_cache_tokens: int | None = None
    main_memory_mib: float | None = None  #: resident in all, where there is no device

    @property
    def total_mib(self) -> float | None:
        """All that it named; None: not even weights and cache."""
        if self.weights_mib is None or self.kv_cache_mib is None:
            return None
        rest = (self.activation_mib or 0.0) + (self.graphs_mib or 0.0)
        return self.weights_mib + self.kv_cache_mib + rest
