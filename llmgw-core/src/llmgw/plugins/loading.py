"""Plugins imported and asked, one at a time, so that each failure has one culprit."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pluggy

from llmgw import hookspecs
from llmgw.config.section import Section
from llmgw.contracts.balancing import BalancerFactory
from llmgw.contracts.dispatch import Dispatcher
from llmgw.contracts.engine import EngineAdapter
from llmgw.contracts.hardware import HardwareProbe
from llmgw.contracts.leases import LeaseStore
from llmgw.contracts.placement import PlacementPolicy
from llmgw.contracts.sinks import Sink
from llmgw.contracts.weights import WeightSource
from llmgw.errors import ConfigError
from llmgw.plugins.checks import name_of, objects_in, sections_in
from llmgw.plugins.found import FoundPlugin

HOOKS = tuple(sorted(name for name in vars(hookspecs) if name.startswith("llmgw_")))

#: Hook: what it hands over, and which attribute names one of them.
KINDS: Mapping[str, tuple[type, str]] = {
    "llmgw_engine_adapters": (EngineAdapter, "name"),
    "llmgw_placement_policies": (PlacementPolicy, "name"),
    "llmgw_balancers": (BalancerFactory, "name"),
    "llmgw_hardware_probes": (HardwareProbe, "vendor"),
    "llmgw_weight_sources": (WeightSource, "scheme"),
    "llmgw_dispatchers": (Dispatcher, "name"),
    "llmgw_sinks": (Sink, "name"),
    "llmgw_lease_stores": (LeaseStore, "name"),
}
#: These need settings, and are called by `Registry` when those are known.
LATE_HOOKS = ("llmgw_dispatchers", "llmgw_sinks", "llmgw_lease_stores")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFailure:
    """A plugin that is not used, and why."""

    distribution: str
    entry: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPlugin:
    """One plugin that is used, with what it handed over."""

    distribution: str
    version: str
    entry: str
    objects: Mapping[str, Mapping[str, object]]  #: by hook, then by name; hooks without settings
    sections: Mapping[str, type[Section]]
    late: tuple[str, ...]  #: hooks it answers once settings are known
    hooks: Mapping[str, Callable[..., object]] = field(repr=False)

    def ask(self, hook: str, /, **arguments: object) -> dict[str, object]:
        """Return what the plugin hands over for `hook`, by name.

        Raises ConfigError as the plugin raised it, and TypeError or whatever else its code does.
        """
        protocol, key = KINDS[hook]
        named: dict[str, object] = {}
        for thing in objects_in(self.hooks[hook](**arguments)):
            name = name_of(thing, protocol, key)
            if name in named:
                raise TypeError(f"hands over {key} {name!r} twice")
            named[name] = thing
        return named


def load_plugins(
    found: Iterable[FoundPlugin],
) -> tuple[tuple[LoadedPlugin, ...], tuple[PluginFailure, ...]]:
    """Import each plugin and ask it for all that needs no settings.

    A plugin is used as a whole or not at all. Never raises because of a plugin.
    """
    loaded: list[LoadedPlugin] = []
    failures: list[PluginFailure] = []
    for plugin in sorted(found, key=lambda one: one.order):
        try:
            loaded.append(_load(plugin))
        except Exception as error:  # a plugin's code may raise anything
            failures.append(failure_of(plugin.distribution, plugin.entry, error))
        except SystemExit:
            failures.append(
                PluginFailure(
                    distribution=plugin.distribution,
                    entry=plugin.entry,
                    reason="tried to end the process while it was imported",
                )
            )
    return tuple(loaded), tuple(failures)


def failure_of(distribution: str, entry: str, error: Exception) -> PluginFailure:
    """Return the failure that an exception out of a plugin's code amounts to, in one line."""
    text = " ".join(str(error).split()) or "no message"
    reason = text if isinstance(error, _Unusable) else f"{type(error).__name__}: {text}"
    return PluginFailure(distribution=distribution, entry=entry, reason=reason)


class _Unusable(Exception):
    """Says in full why a plugin cannot be used; needs no exception's name before it."""


def _load(plugin: FoundPlugin) -> LoadedPlugin:
    module = plugin.load()
    hooks = _hooks_of(module)
    asked: dict[str, Mapping[str, object]] = {}
    sections: dict[str, type[Section]] = {}
    answers = LoadedPlugin(
        distribution=plugin.distribution,
        version=plugin.version,
        entry=plugin.entry,
        objects=asked,
        sections=sections,
        late=tuple(hook for hook in hooks if hook in LATE_HOOKS),
        hooks=hooks,
    )
    for hook in hooks:
        try:
            if hook == "llmgw_settings_sections":
                sections.update(sections_in(hooks[hook]()))
            elif hook not in LATE_HOOKS:
                asked[hook] = answers.ask(hook)
        except Exception as error:
            raise _Unusable(f"{hook}: {_one_line(error)}") from error
    return answers


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, TypeError | ConfigError) else f"{type(error).__name__}: {text}"


def _hooks_of(module: object) -> dict[str, Callable[..., object]]:
    """Return the hooks that a plugin implements, each callable by keyword."""
    # A manager for each plugin, so that pluggy checks signatures and nothing mixes.
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise _Unusable(_validation_text(module, error)) from error
    for name in dir(module):
        if name.startswith("llmgw_") and callable(getattr(module, name)):
            if name not in HOOKS:
                raise _Unusable(_unknown_hook(name))
            if manager.parse_hookimpl_opts(module, name) is None:
                raise _Unusable(f"{name} is not marked: put @hookimpl from llmgw above it")
    hooks = {
        name: _only_answer(getattr(manager.hook, name))
        for name in HOOKS
        if getattr(manager.hook, name).get_hookimpls()
    }
    if not hooks:
        raise _Unusable(f"implements no hook; there are: {', '.join(HOOKS)}")
    return hooks


def _only_answer(caller: pluggy.HookCaller) -> Callable[..., object]:
    def ask(**arguments: object) -> object:
        answers = caller(**arguments)
        # pluggy leaves out None, the answer of a hook that forgot to return.
        return answers[0] if answers else None

    return ask


def _validation_text(module: object, error: pluggy.PluginValidationError) -> str:
    unknown = [name for name in dir(module) if name.startswith("llmgw_") and name not in HOOKS]
    return _unknown_hook(unknown[0]) if unknown else " ".join(str(error).split())


def _unknown_hook(name: str) -> str:
    near = difflib.get_close_matches(name, HOOKS, n=1)
    meant = f"did you mean {near[0]}?" if near else f"there are: {', '.join(HOOKS)}"
    return f"unknown hook {name}; {meant}"
