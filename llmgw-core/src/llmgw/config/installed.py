"""What plugins bring, as far as settings are checked against it.

Settings know no plugin and no contract; whoever loads them passes this in
(`plugins.Registry.installed`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from llmgw.config.section import Section
from llmgw.domain.catalog import Profile
from llmgw.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """Names that settings may use, and who checks what is written under them."""

    engines: Mapping[str, Callable[[Profile], Sequence[Problem]]] | None = None
    """By name; None: plugins were not asked."""
    weights: Mapping[str, Callable[[str], str | None]] = field(default_factory=dict)
    """By scheme. Empty: nobody here can tell, since only the agent's package knows."""
    balancers: Mapping[str, Callable[[Mapping[str, object]], object]] = field(default_factory=dict)
    """By name; raises ConfigError for options that it does not take."""
    policies: frozenset[str] = frozenset()
    sections: Mapping[str, type[Section]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)  #: why, by distribution
