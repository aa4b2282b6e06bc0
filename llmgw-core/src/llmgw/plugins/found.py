"""What is installed, as the metadata of distributions says. Imports no plugin."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from llmgw.contracts.cli import PLUGIN_GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlugin:
    """One entry point of the group `llmgw`, not imported yet."""

    distribution: str
    version: str
    entry: str  #: name of the entry point
    load: Callable[[], object]  #: imports and returns the plugin; may raise anything

    @property
    def order(self) -> tuple[str, str]:
        """By distribution, so that two machines with the same packages behave the same."""
        return (re.sub(r"[-_.]+", "-", self.distribution).lower(), self.entry)


def installed_plugins() -> tuple[FoundPlugin, ...]:
    """Return every entry point of the group `llmgw`, sorted by distribution."""
    found = [
        FoundPlugin(
            distribution=entry.dist.name if entry.dist else "unknown",
            version=entry.dist.version if entry.dist else "unknown",
            entry=entry.name,
            load=entry.load,
        )
        for entry in metadata.entry_points(group=PLUGIN_GROUP)
    ]
    return tuple(sorted(found, key=lambda plugin: plugin.order))
