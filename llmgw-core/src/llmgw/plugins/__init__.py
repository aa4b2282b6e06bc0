"""Installed plugins: found, loaded one by one, checked, and frozen into a `Registry`.

    registry = load_registry()
    registry.engines["vllm"].check(profile)

A broken plugin is skipped, named and listed (`llmgw plugins`); it never ends a process by
itself. Two packages that supply the same name do: nobody could say which was meant.
"""

from llmgw.plugins.found import FoundPlugin, installed_plugins
from llmgw.plugins.loading import LoadedPlugin, PluginFailure, load_plugins
from llmgw.plugins.registry import Registry, Supplied, load_registry

__all__ = [
    "FoundPlugin",
    "LoadedPlugin",
    "PluginFailure",
    "Registry",
    "Supplied",
    "installed_plugins",
    "load_plugins",
    "load_registry",
]
