"""What this package supplies to llmgw: the stream to nodes, and what a node is made of."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw import hookimpl
from llmgw.contracts.dispatch import Dispatcher, DispatcherContext
from llmgw.contracts.hardware import HardwareProbe
from llmgw.contracts.weights import WeightSource

# Everything is imported where it is asked for: a router that only lists its plugins must not pay
# for gRPC.


@hookimpl
def llmgw_dispatchers(context: DispatcherContext) -> Iterable[Dispatcher]:
    """Supply the dispatcher named `grpc`, which agents connect to."""
    from llmgw_agent.wire.quiet import quiet_grpc

    quiet_grpc()
    from llmgw_agent.hub.dispatcher import HubDispatcher

    return [HubDispatcher(context)]


@hookimpl
def llmgw_hardware_probes() -> Iterable[HardwareProbe]:
    """Supply the probes for NVIDIA's and AMD's devices."""
    from llmgw_agent.node.hardware import probes

    return probes()


@hookimpl
def llmgw_weight_sources() -> Iterable[WeightSource]:
    """Supply `path:`, `pypi:`, `https:` and `hf:`."""
    from llmgw_agent.node.weights import sources

    return sources()
