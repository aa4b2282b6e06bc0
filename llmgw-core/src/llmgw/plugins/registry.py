"""All that plugins supply, by name, never changed after the start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar, cast

from llmgw.config.installed import Installed
from llmgw.config.section import Section
from llmgw.contracts.balancing import BalancerFactory
from llmgw.contracts.dispatch import Dispatcher, DispatcherContext
from llmgw.contracts.engine import EngineAdapter
from llmgw.contracts.hardware import HardwareProbe
from llmgw.contracts.leases import LeaseStore
from llmgw.contracts.placement import PlacementPolicy
from llmgw.contracts.sinks import Sink
from llmgw.contracts.weights import WeightSource
from llmgw.errors import ConfigError, PluginConflictError, Problem
from llmgw.logs import get_logger
from llmgw.plugins.found import FoundPlugin, installed_plugins
from llmgw.plugins.loading import KINDS, LoadedPlugin, PluginFailure, failure_of, load_plugins

log = get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplied(Generic[T]):
    """The answer of all plugins to one hook that needs settings."""

    objects: Mapping[str, T]  #: by name
    failures: tuple[PluginFailure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """What this process may use of its plugins."""

    engines: Mapping[str, EngineAdapter]
    policies: Mapping[str, PlacementPolicy]
    balancers: Mapping[str, BalancerFactory]
    weight_sources: Mapping[str, WeightSource]  #: by scheme
    probes: Mapping[str, HardwareProbe]  #: by vendor
    sections: Mapping[str, type[Section]]  #: plugins' settings
    distributions: tuple[LoadedPlugin, ...]  #: sorted by distribution
    failures: tuple[PluginFailure, ...]

    @classmethod
    def of(
        cls, loaded: tuple[LoadedPlugin, ...], failures: tuple[PluginFailure, ...] = ()
    ) -> Registry:
        """Return what these plugins supply together.

        Raises PluginConflictError naming both packages if one name comes twice.
        """

        def merged(hook: str) -> Mapping[str, object]:
            answers = [(plugin, plugin.objects.get(hook, {})) for plugin in loaded]
            return _merged(KINDS[hook][0].__name__, answers)

        return cls(
            engines=cast(Mapping[str, EngineAdapter], merged("llmgw_engine_adapters")),
            policies=cast(Mapping[str, PlacementPolicy], merged("llmgw_placement_policies")),
            balancers=cast(Mapping[str, BalancerFactory], merged("llmgw_balancers")),
            weight_sources=cast(Mapping[str, WeightSource], merged("llmgw_weight_sources")),
            probes=cast(Mapping[str, HardwareProbe], merged("llmgw_hardware_probes")),
            sections=_merged("Section", [(plugin, plugin.sections) for plugin in loaded]),
            distributions=loaded,
            failures=failures,
        )

    @property
    def installed(self) -> Installed:
        """What settings are checked against."""
        return Installed(
            engines={name: adapter.check for name, adapter in self.engines.items()},
            weights={scheme: source.problem for scheme, source in self.weight_sources.items()},
            balancers={name: factory.make for name, factory in self.balancers.items()},
            policies=frozenset(self.policies),
            sections=self.sections,
            failed={failure.distribution: failure.reason for failure in self.failures},
        )

    def dispatchers(self, context: DispatcherContext) -> Supplied[Dispatcher]:
        """Return the ways to reach nodes, by name."""
        return cast(Supplied[Dispatcher], self._late("llmgw_dispatchers", context=context))

    def sinks(self, settings: Mapping[str, object]) -> Supplied[Sink]:
        """Return the places besides the router where the fleet is published, by name."""
        return cast(Supplied[Sink], self._late("llmgw_sinks", settings=settings))

    def lease_stores(self, settings: Mapping[str, object]) -> Supplied[LeaseStore]:
        """Return the ways to agree on one leader, by name."""
        return cast(Supplied[LeaseStore], self._late("llmgw_lease_stores", settings=settings))

    def require(self, distributions: Iterable[str]) -> None:
        """Raise ConfigError unless the plugins of all these distributions are in use.

        `*` stands for every plugin that is installed.
        """
        used = {plugin.distribution for plugin in self.distributions}
        failed = {failure.distribution: failure for failure in self.failures}
        problems = []
        for name in distributions:
            if name == "*":
                problems += [_problem_of(failure) for failure in self.failures]
            elif name in failed:
                problems.append(_problem_of(failed[name]))
            elif name not in used:
                problems.append(f"{name!r} is not installed: pip install {name}")
        if problems:
            raise ConfigError(
                "plugins", [Problem(path="required_plugins", message=text) for text in problems]
            )

    def _late(self, hook: str, **arguments: object) -> Supplied[object]:
        answers: list[tuple[LoadedPlugin, Mapping[str, object]]] = []
        failures: list[PluginFailure] = []
        for plugin in self.distributions:
            if hook not in plugin.late:
                continue
            try:
                answers.append((plugin, plugin.ask(hook, **arguments)))
            except ConfigError:
                raise  # what the operator wrote for this plugin is wrong
            except Exception as error:  # a plugin's code may raise anything
                failure = failure_of(plugin.distribution, plugin.entry, error)
                log.error(
                    "plugin skipped",
                    distribution=failure.distribution,
                    hook=hook,
                    reason=failure.reason,
                )
                failures.append(failure)
        return Supplied(objects=_merged(KINDS[hook][0].__name__, answers), failures=tuple(failures))


def load_registry(found: Iterable[FoundPlugin] | None = None) -> Registry:
    """Return what the installed plugins supply; logs each one that had to be skipped.

    found: instead of those that are installed, for tests. Raises PluginConflictError.
    """
    loaded, failures = load_plugins(installed_plugins() if found is None else found)
    for failure in failures:
        log.warning(
            "plugin skipped",
            distribution=failure.distribution,
            entry=failure.entry,
            reason=failure.reason,
        )
    return Registry.of(loaded, failures)


def _merged(kind: str, answers: list[tuple[LoadedPlugin, Mapping[str, T]]]) -> Mapping[str, T]:
    owners: dict[str, LoadedPlugin] = {}
    merged: dict[str, T] = {}
    for plugin, named in answers:
        for name, thing in named.items():
            if name in owners:
                first = owners[name].distribution
                raise PluginConflictError(
                    f"{kind} {name!r} is supplied by both {first} and {plugin.distribution}; "
                    "uninstall one of them",
                    distribution=plugin.distribution,
                )
            owners[name] = plugin
            merged[name] = thing
    return MappingProxyType(merged)


def _problem_of(failure: PluginFailure) -> str:
    return f"{failure.distribution} ({failure.entry}) failed: {failure.reason}"
