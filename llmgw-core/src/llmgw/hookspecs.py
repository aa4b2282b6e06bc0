"""Every hook, documented: what plugins may supply.

Hooks are synchronous, run once at start and hand over objects. None runs per request or per
tick. Core's own parts come through the same hooks (`control/builtins.py`, `router/balancers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pluggy

from llmgw.config.section import Section
from llmgw.contracts.balancing import BalancerFactory
from llmgw.contracts.dispatch import Dispatcher, DispatcherContext
from llmgw.contracts.engine import EngineAdapter
from llmgw.contracts.hardware import HardwareProbe
from llmgw.contracts.leases import LeaseStore
from llmgw.contracts.placement import PlacementPolicy
from llmgw.contracts.sinks import Sink
from llmgw.contracts.weights import WeightSource

PROJECT = "llmgw"

hookspec = pluggy.HookspecMarker(PROJECT)


@hookspec
def llmgw_engine_adapters() -> Iterable[EngineAdapter]:
    """Hand over the engines this package can launch.

    Called:    once, after plugins load and before settings are checked.
    Process:   server (checks profiles, reads load) and agent (launches).
    Arguments: none.
    Returns:   adapters; all answers are kept, in order of distribution name. Not firstresult.
    Errors:    one name twice is a PluginConflictError naming both packages.
    Example::

        @hookimpl
        def llmgw_engine_adapters():
            return [VllmAdapter()]
    """
    return ()


@hookspec
def llmgw_placement_policies() -> Iterable[PlacementPolicy]:
    """Hand over ways to rank feasible placements.

    Called:    once, after plugins load and before settings are checked.
    Process:   server and `llmgw simulate`.
    Arguments: none.
    Returns:   policies; `control.placement_policy` names the one in force.
    Errors:    one name twice is a PluginConflictError naming both packages.
    Example::

        @hookimpl
        def llmgw_placement_policies():
            return [CoolestRackFirst()]
    """
    return ()


@hookspec
def llmgw_dispatchers(context: DispatcherContext) -> Iterable[Dispatcher]:
    """Hand over ways to reach nodes.

    Called:    once, after settings are checked and before anything listens.
    Process:   server.
    Arguments: context: the server's listening address, state folder, trust, clock and sections.
    Returns:   dispatchers; `control.dispatcher` names the one in force.
    Errors:    one name twice is a PluginConflictError; a ConfigError ends the start.
    Example::

        @hookimpl
        def llmgw_dispatchers(context):
            return [SlurmDispatcher(context.agent_listen)]
    """
    return ()


@hookspec
def llmgw_sinks(settings: Mapping[str, object]) -> Iterable[Sink]:
    """Hand over places where the fleet is published besides the router.

    Called:    once, after settings are checked.
    Process:   server.
    Arguments: settings: the checked sections of all plugins, by name.
    Returns:   sinks; each gets every state, newest wins. () if not configured.
    Errors:    one name twice is a PluginConflictError naming both packages.
    Example::

        @hookimpl
        def llmgw_sinks(settings):
            section = settings["consul"]
            return [ConsulSink(section)] if section.url else []
    """
    return ()


@hookspec
def llmgw_balancers() -> Iterable[BalancerFactory]:
    """Hand over ways to choose among a model's endpoints.

    Called:    once, after plugins load and before settings are checked.
    Process:   server and router, in each worker.
    Arguments: none.
    Returns:   factories; a routing profile names the one it uses.
    Errors:    one name twice is a PluginConflictError naming both packages.
    Example::

        @hookimpl
        def llmgw_balancers():
            return [CheapestRegionFactory()]
    """
    return ()


@hookspec
def llmgw_lease_stores(settings: Mapping[str, object]) -> Iterable[LeaseStore]:
    """Hand over ways to agree on one leader.

    Called:    once, after settings are checked.
    Process:   server.
    Arguments: settings: the checked sections of all plugins, by name.
    Returns:   lease stores; `control.lease_store` names one. Default: the store's own.
    Errors:    one name twice is a PluginConflictError naming both packages.
    Example::

        @hookimpl
        def llmgw_lease_stores(settings):
            return [EtcdLeases(settings["etcd"].url)]
    """
    return ()


@hookspec
def llmgw_settings_sections() -> Mapping[str, type[Section]]:
    """Hand over typed settings of this package.

    Called:    once, after plugins load and before settings are read.
    Process:   server, router and agent.
    Arguments: none.
    Returns:   section by name; read from `plugins.<name>` and `LLMGW_PLUGINS__<NAME>__…`.
    Errors:    one name twice is a PluginConflictError; unknown keys are ConfigErrors.
    Example::

        @hookimpl
        def llmgw_settings_sections():
            return {"consul": ConsulSection}
    """
    return {}


@hookspec
def llmgw_hardware_probes() -> Iterable[HardwareProbe]:
    """Hand over ways to find accelerators.

    Called:    once, when the agent starts.
    Process:   agent.
    Arguments: none.
    Returns:   probes, one per vendor; all are asked, each on a thread of its own.
    Errors:    one vendor twice is a PluginConflictError naming both packages.
    Example::

        @hookimpl
        def llmgw_hardware_probes():
            return [GaudiProbe()]
    """
    return ()


@hookspec
def llmgw_weight_sources() -> Iterable[WeightSource]:
    """Hand over places that model weights come from.

    Called:    once, after plugins load and before settings are checked.
    Process:   server (checks refs) and agent (fetches).
    Arguments: none.
    Returns:   sources, one per scheme of `weights:`.
    Errors:    one scheme twice is a PluginConflictError naming both packages.
    Example::

        @hookimpl
        def llmgw_weight_sources():
            return [S3Source()]
    """
    return ()
