"""How busy an engine is, in one shape for all engines."""

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
