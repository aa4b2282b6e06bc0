"""Puts one engine to sleep and wakes it, and proves both. A shell.

An engine's word is not enough: `/sleep` has answered 200 while the memory stayed. So the devices
are read before and after where they can be, and only then are their locks lent to others.
"""

from __future__ import annotations

import signal

import anyio.to_thread

from llmgw.contracts.engine import EngineAdapter, Probe, Sleeps
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import DeviceId
from llmgw.domain.nodes import Device
from llmgw.domain.replicas import Failure, FailureCause
from llmgw.domain.secret import Secret
from llmgw_agent.node import processes
from llmgw_agent.node.durable import DiskFull
from llmgw_agent.node.host import Host, StepFailed
from llmgw_agent.node.incarnation import Incarnation
from llmgw_agent.node.probes import NoAnswer, ask
from llmgw_agent.node.shardfolder import ShardFolder, Sleep

#: What a sleeping engine may keep of each device: its context, captured graphs, buffers. 1.4 GiB
#: were measured of vLLM on an H100; a quarter of what it had covers small models.
KEEPS_MIB = 4096
KEEPS_SHARE = 0.25
_MEMORY_LIMIT_S = 60.0
_LOCK_LIMIT_S = 5.0
_POLL_S = 0.5
_LOCK_POLL_S = 0.02


class Sleeper:
    """Puts the incarnations of one shard to sleep."""

    def __init__(self, *, host: Host, folder: ShardFolder) -> None:
        self._host = host
        self._folder = folder

    async def fall_asleep(
        self, at: Incarnation, spec: ShardSpec, *, adapter: EngineAdapter, level: int
    ) -> None:
        """Return once the engine sleeps, its memory is back and its devices are lent.

        Safe to repeat, also by an agent that finds the engine half asleep. Raises StepFailed.
        """
        engine = _sleepy(adapter)
        run = at.record.run if at.record else 0
        before = _used(await self._host.devices(), spec.devices)
        said = await self._says_asleep(at, engine, spec)
        known = self._folder.sleep(run)
        if known is None or not known.verified:
            await self._mark(Sleep(run=run, level=level, verified=False))
            if said is not True:
                await self._tell(at, spec.ports[0], engine.sleep_requests(spec, level))
                await self._wait_memory_back(before, spec.devices)
                said = await self._says_asleep(at, engine, spec)
            if said is False:
                raise _failed("the engine took the order to sleep and says that it is awake")
            await self._mark(Sleep(run=run, level=level, verified=True))
        await self._lend(at, spec.devices, lent=True)

    async def wake_up(self, at: Incarnation, spec: ShardSpec, *, adapter: EngineAdapter) -> None:
        """Return once the engine has its memory again; that it serves is for a look to prove.

        Safe to repeat. Raises StepFailed.
        """
        engine = _sleepy(adapter)
        run = at.record.run if at.record else 0
        await self._lend(at, spec.devices, lent=False)
        known = self._folder.sleep(run)
        if known is not None and await self._says_asleep(at, engine, spec) is not False:
            await self._tell(at, spec.ports[0], engine.wake_requests(spec, known.level))
        await anyio.to_thread.run_sync(self._folder.mark_awake)

    async def _mark(self, sleep: Sleep) -> None:
        try:
            await anyio.to_thread.run_sync(self._folder.mark_asleep, sleep)
        except (DiskFull, OSError) as error:
            raise _failed(f"that it sleeps cannot be kept: {error}") from error

    async def _says_asleep(self, at: Incarnation, engine: Sleeps, spec: ShardSpec) -> bool | None:
        """Return the engine's own word; None: it has none."""
        probe = engine.sleep_state
        if probe is None:
            return None
        try:
            answer = await ask(self._host.address, spec.ports[0], probe, Secret(at.secret))
        except NoAnswer as error:
            raise _failed(f"whether it sleeps cannot be asked: {error}") from error
        return engine.read_sleep_state(answer.text()) if answer.is_good else None

    async def _tell(self, at: Incarnation, port: int, probes: tuple[Probe, ...]) -> None:
        for probe in probes:
            try:
                answer = await ask(self._host.address, port, probe, Secret(at.secret))
            except NoAnswer as error:
                raise _failed(str(error)) from error
            if not answer.is_good:
                raise _failed(f"{probe.path} says {answer.status}: {answer.text()[:300]}")

    async def _wait_memory_back(
        self, before: dict[DeviceId, int], devices: tuple[DeviceId, ...]
    ) -> None:
        """Wait until the devices show it. One that cannot be read proves nothing either way."""
        deadline = self._host.clock.monotonic() + _MEMORY_LIMIT_S
        while True:
            now = _used(await self._host.devices(), devices)
            held = {
                device: used
                for device, used in now.items()
                if device in before and used > max(KEEPS_MIB, before[device] * KEEPS_SHARE)
            }
            if not held:
                return
            if self._host.clock.monotonic() > deadline:
                device, used = next(iter(held.items()))
                raise _failed(
                    f"told to sleep, it still holds {used} of {before[device]} MiB on {device}"
                )
            await self._host.clock.sleep(_POLL_S)

    async def _lend(self, at: Incarnation, devices: tuple[DeviceId, ...], *, lent: bool) -> None:
        """Let the shim lend the devices' locks, or take them again."""
        if not devices or at.state is None:
            return
        deadline = self._host.clock.monotonic() + _LOCK_LIMIT_S
        while True:
            state = self._folder.state()
            if state is None or state.lent is None:
                raise _failed("its shim is of a release that cannot lend devices; restart it once")
            if state.lent == lent:
                return
            if self._host.clock.monotonic() > deadline:
                raise StepFailed(
                    Failure(
                        cause=FailureCause.DEVICE_BUSY,
                        message=f"{', '.join(devices)}: taken by another engine while it slept",
                    )
                )
            processes.send_signal(at.state.shim, signal.SIGUSR1 if lent else signal.SIGUSR2)
            await self._host.clock.sleep(_LOCK_POLL_S)


def _sleepy(adapter: EngineAdapter) -> Sleeps:
    if not isinstance(adapter, Sleeps):
        raise _failed(f"the engine {adapter.name} has no sleep")
    return adapter


def _used(devices: tuple[Device, ...], wanted: tuple[DeviceId, ...]) -> dict[DeviceId, int]:
    return {
        device.id: device.memory_used_mib
        for device in devices
        if device.id in wanted and device.memory_used_mib is not None
    }


def _failed(message: str) -> StepFailed:
    hint = "the model is stopped instead, and started anew when it is asked for"
    return StepFailed(Failure(cause=FailureCause.SLEEP_FAILED, message=message, hint=hint))
