"""Gives one serving engine the LoRA adapters that its assignment lists, and no others. A shell.

What the engine has it says itself, so nothing is remembered: an agent that takes an engine over,
and one that ended half-way, begin from the same list.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmgw.contracts.engine import EngineAdapter, LoadsAdapters, Probe
from llmgw.domain.commands import LoraAdapter, ShardSpec
from llmgw.domain.ids import ModelName
from llmgw.domain.reports import AdapterReport
from llmgw.domain.secret import Secret
from llmgw_agent.node.host import Host, StepFailed
from llmgw_agent.node.incarnation import Incarnation
from llmgw_agent.node.probes import NoAnswer, ask


class _NotDone(Exception):
    """The engine did not do it; the text says why, for a person."""


class Adapting:
    """Adapts the incarnations of one shard."""

    def __init__(self, *, host: Host) -> None:
        self._host = host

    async def adapt(
        self, at: Incarnation, spec: ShardSpec, engine: EngineAdapter | None
    ) -> tuple[AdapterReport, ...]:
        """Unload, fetch and load; return how each of the spec's adapters is. Safe to repeat."""
        if not isinstance(engine, LoadsAdapters):
            return _all(spec, f"the engine {spec.engine} takes no adapters while it serves")
        try:
            loaded = await self._loaded(at, spec, engine)
            for name in loaded.keys() - {item.name for item in spec.adapters}:
                await self._tell(at, spec, engine.unload_adapter(name))
        except _NotDone as error:
            return _all(spec, str(error))
        return tuple([await self._have(at, spec, engine, loaded, item) for item in spec.adapters])

    async def _have(
        self,
        at: Incarnation,
        spec: ShardSpec,
        engine: LoadsAdapters,
        loaded: Mapping[str, str],
        item: LoraAdapter,
    ) -> AdapterReport:
        try:
            path = str(await self._host.weights.ensure(item.weights, report=_ignore))
            if loaded.get(item.name) == path:
                return AdapterReport(name=item.name)
            if item.name in loaded:  # of other weights
                await self._tell(at, spec, engine.unload_adapter(item.name))
            await self._tell(at, spec, engine.load_adapter(item.name, path))
        except (StepFailed, _NotDone) as error:
            return AdapterReport(name=item.name, problem=str(error))
        return AdapterReport(name=item.name)

    async def _loaded(
        self, at: Incarnation, spec: ShardSpec, engine: LoadsAdapters
    ) -> Mapping[str, str]:
        answer = await self._tell(at, spec, engine.adapter_list)
        try:
            return engine.read_adapters(spec, answer)
        except ValueError as error:
            raise _NotDone(f"{engine.adapter_list.path} lists no models: {error}") from error

    async def _tell(self, at: Incarnation, spec: ShardSpec, probe: Probe) -> str:
        try:
            answer = await ask(self._host.address, spec.ports[0], probe, Secret(at.secret))
        except (NoAnswer, OSError) as error:
            raise _NotDone(str(error)) from error
        if not answer.is_good:
            raise _NotDone(f"{probe.path} says {answer.status}: {answer.text()[:300]}")
        return answer.text()


def _all(spec: ShardSpec, problem: str) -> tuple[AdapterReport, ...]:
    return tuple(
        AdapterReport(name=ModelName(item.name), problem=problem) for item in spec.adapters
    )


def _ignore(_done: float, _total: float | None) -> None:
    """Adapters are small: how far one has come is not told."""
