"""Commands that came down, turned into edits of the assignments, or refused with a code.

The node is the arbiter of its devices: whatever a server believes, nothing is taken on here
that another shard owns, that an older leadership orders or that the engine would refuse.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

import msgspec
from pydantic import ValidationError

from llmgw.contracts.engine import EngineAdapter, Sleeps
from llmgw.domain.commands import (
    AdaptShard,
    Command,
    DrainShard,
    ShardSpec,
    SleepShard,
    StartShard,
    StopShard,
    WakeShard,
)
from llmgw.domain.ids import DeviceId, NodeId, ShardId, safe_name_problem
from llmgw.domain.nodes import Device, DeviceHealth
from llmgw.domain.reports import Rejection
from llmgw.logs import get_logger
from llmgw_agent.node.assignments import Assigned, Assignments, Intent
from llmgw_agent.node.durable import DiskFull
from llmgw_agent.node.launching import profile_of

log = get_logger(__name__)

# Variables that would load code into the engine, or into everything that it starts.
_FORBIDDEN_ENV = re.compile(r"LD_.*|PYTHON.*|LLMGW_.*|BASH_ENV|ENV|VLLM_SERVER_DEV_MODE")


class CommandHandler:
    """Applies commands one at a time, in the order in which they came."""

    def __init__(
        self,
        *,
        node: NodeId,
        assignments: Assignments,
        adapters: Mapping[str, EngineAdapter],
        devices: Callable[[], tuple[Device, ...]],
        weights_problem: Callable[[str], str | None],
        address: str,
        guarded: bool,
    ) -> None:
        """devices: as last seen. weights_problem: why a ref can never be fetched here.

        address: the IP that engines bind. guarded: only this machine or routers reach it.
        """
        self._node = node
        self._assignments = assignments
        self._adapters = adapters
        self._devices = devices
        self._weights_problem = weights_problem
        self._address = address
        self._guarded = guarded
        self._leaving = False

    def leave(self) -> None:
        """Take on nothing more: this agent stops its engines and ends."""
        self._leaving = True

    async def apply(self, command: Command) -> Rejection | None:
        """Make the edit durable, then return None; or return why it was refused.

        Safe to repeat. Takes as long as one write to the disk, which may be slow.
        """
        async with self._assignments.turn:
            refusal = await self._edit(command)
        if refusal is None:
            return None
        code, message = refusal
        shard = _shard_of(command)
        log.warning("command refused", shard=shard, code=code, reason=message)
        return Rejection(node=self._node, shard=shard, code=code, message=message)

    async def _edit(self, command: Command) -> tuple[str, str] | None:
        refusal = self._stale(command)
        if refusal is None:
            try:
                match command:
                    case StartShard():
                        refusal = await self._start(command)
                    case DrainShard():
                        await self._redirect(command, Intent.DRAIN)
                    case StopShard():
                        await self._redirect(command, Intent.STOP, grace_s=command.grace_s)
                    case SleepShard():
                        refusal = await self._sleep(command)
                    case WakeShard():
                        refusal = await self._wake(command)
                    case AdaptShard():
                        await self._adapt(command)
                    case _:
                        assert_never(command)
            except DiskFull as error:
                refusal = ("disk_full", str(error))
            except OSError as error:
                refusal = ("io_error", f"the order cannot be taken now: {error}")
        return refusal

    def _stale(self, command: Command) -> tuple[str, str] | None:
        known = self._assignments.epoch
        if command.epoch >= known:
            return None
        return "stale_epoch", (
            f"ordered under epoch {command.epoch}, and this node has obeyed epoch {known} since"
        )

    async def _start(self, command: StartShard) -> tuple[str, str] | None:
        spec = command.spec
        known = self._assignments.get(spec.id)
        if known is not None and not _same(known.spec, spec):
            return "id_taken", f"shard {spec.id} is assigned here with another specification"
        if known is None and self._leaving:
            # A server that sees an engine stop would at once order another one here.
            return "agent_leaving", "this agent is stopping its engines and will end"
        if known is None and (refusal := self._unfit(spec)):
            return refusal
        if known is not None:
            spec = replace(spec, adapters=known.spec.adapters)
        await self._assignments.put(Assigned(spec=spec, epoch=command.epoch))
        if known is None:
            log.info("shard assigned", shard=spec.id, model=spec.model, engine=spec.engine)
        return None

    async def _redirect(
        self,
        command: DrainShard | StopShard | SleepShard | WakeShard,
        intent: Intent,
        *,
        grace_s: float | None = None,
        sleep_level: int | None = None,
    ) -> None:
        known = self._assignments.get(command.shard)
        if known is None:
            await self._assignments.raise_epoch(command.epoch)
            return
        # A drain that arrives after the stop must not bring the shard back.
        intent = Intent.STOP if known.intent is Intent.STOP else intent
        await self._assignments.put(
            replace(
                known,
                epoch=command.epoch,
                intent=intent,
                grace_s=grace_s or known.grace_s,
                sleep_level=sleep_level or known.sleep_level,
            )
        )
        if known.intent is not intent:
            log.info("shard ordered", shard=command.shard, order=intent)

    async def _adapt(self, command: AdaptShard) -> None:
        """Whether each can be had is seen when it is, and told in the shard's reports."""
        known = self._assignments.get(command.shard)
        if known is None:
            await self._assignments.raise_epoch(command.epoch)
            return
        if known.spec.adapters != command.adapters:
            names = ", ".join(item.name for item in command.adapters)
            log.info("adapters ordered", shard=command.shard, adapters=names or "none")
        spec = replace(known.spec, adapters=command.adapters)
        await self._assignments.put(replace(known, spec=spec, epoch=command.epoch))

    async def _sleep(self, command: SleepShard) -> tuple[str, str] | None:
        known = self._assignments.get(command.shard)
        if known is not None:
            adapter = self._adapters.get(known.spec.engine)
            if not isinstance(adapter, Sleeps) or not adapter.sleep_requests(
                known.spec, command.level
            ):
                return "sleep_unsupported", (
                    f"{known.spec.engine} cannot sleep at level {command.level} with these options"
                )
            if adapter.traits.sleep_is_open and not self._guarded:
                return "sleep_unsafe", (
                    f"whoever reaches {self._address} could order {known.spec.engine} to sleep: "
                    "keep strangers off with the firewall and set engine_firewall"
                )
        await self._redirect(command, Intent.SLEEP, sleep_level=command.level)
        return None

    async def _wake(self, command: WakeShard) -> tuple[str, str] | None:
        known = self._assignments.get(command.shard)
        if known is not None and known.intent is Intent.SLEEP:
            owners = self._device_owners()
            for device in known.spec.devices:
                if device in owners:
                    return "device_busy", f"device {device} belongs to shard {owners[device]}"
        await self._redirect(command, Intent.RUN)
        return None

    def _device_owners(self) -> dict[DeviceId, ShardId]:
        """Return whose each device is; a shard that is to sleep lends its own."""
        return {
            device: other.spec.id
            for other in self._assignments.all().values()
            if other.intent is not Intent.SLEEP
            for device in other.spec.devices
        }

    def _unfit(self, spec: ShardSpec) -> tuple[str, str] | None:
        if problem := safe_name_problem(spec.id):
            return "bad_option", f"shard id {problem}"
        adapter = self._adapters.get(spec.engine)
        if adapter is None:
            have = ", ".join(sorted(self._adapters)) or "none"
            return "unknown_engine", f"no engine {spec.engine!r} on this node; it has: {have}"
        return (
            _env_problem(spec.env)
            or self._profile_problem(adapter, spec)
            or self._weights_refusal(spec.weights)
            or self._device_problem(spec)
            or self._port_problem(spec)
        )

    def _profile_problem(self, adapter: EngineAdapter, spec: ShardSpec) -> tuple[str, str] | None:
        try:
            profile = profile_of(spec)
        except ValidationError as error:
            return "bad_option", "; ".join(item["msg"] for item in error.errors())
        problems = adapter.check(profile)
        return ("bad_option", "; ".join(str(item) for item in problems)) if problems else None

    def _weights_refusal(self, ref: str) -> tuple[str, str] | None:
        problem = self._weights_problem(ref)
        return ("bad_weights", problem) if problem else None

    def _device_problem(self, spec: ShardSpec) -> tuple[str, str] | None:
        present = {device.id: device for device in self._devices()}
        owners = self._device_owners()
        for wanted in spec.devices:
            if wanted in owners:
                return "device_busy", f"device {wanted} belongs to shard {owners[wanted]}"
            if wanted not in present:
                return "unknown_device", f"this node has no device {wanted}"
            if present[wanted].health is DeviceHealth.FAILED:
                return "device_failed", f"device {wanted}: {present[wanted].health_reason}"
        return None

    def _port_problem(self, spec: ShardSpec) -> tuple[str, str] | None:
        owners = {
            port: other.spec.id
            for other in self._assignments.all().values()
            for port in other.spec.ports
        }
        for port in spec.ports:
            if port in owners:
                return "port_in_use", f"port {port} belongs to shard {owners[port]}"
            if problem := bind_problem(self._address, port):
                return "port_in_use", problem
        return None


def bind_problem(address: str, port: int) -> str | None:
    """Return why nobody can listen on this port now; None if one can."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As engines do: a port whose last connections are in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            return f"port {port} of {address} cannot be had: {error.strerror}"
    return None


def _same(one: ShardSpec, other: ShardSpec) -> bool:
    # As plain JSON values: a spec that was persisted has lists where a fresh one may have tuples.
    # Adapters are changed by commands of their own.
    return bool(
        msgspec.to_builtins(replace(one, adapters=()))
        == msgspec.to_builtins(replace(other, adapters=()))
    )


def _env_problem(env: Mapping[str, str]) -> tuple[str, str] | None:
    bad = sorted(name for name in env if _FORBIDDEN_ENV.fullmatch(name))
    return ("bad_option", f"env must not set {', '.join(bad)}") if bad else None


def _shard_of(command: Command) -> ShardId:
    return command.spec.id if isinstance(command, StartShard) else command.shard
