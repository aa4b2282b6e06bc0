"""Ends one engine: signal and grace, then its whole tree, then waits for the devices. A shell."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import anyio.to_thread

from llmgw.domain.ids import DeviceId
from llmgw.logs import get_logger
from llmgw_agent.node import processes
from llmgw_agent.node.host import Host
from llmgw_agent.node.incarnation import Incarnation
from llmgw_agent.node.processes import Process

log = get_logger(__name__)

_KILL_LIMIT_S = 10.0
_SHIM_LIMIT_S = 2.0  # from the end of the last process to the shim's own
_MEMORY_LIMIT_S = 60.0
_MEMORY_SLACK_MIB = 512  # others on the same device come and go
_POLL_S = 0.05


class Ender:
    """Ends the incarnations of one shard."""

    def __init__(self, *, host: Host) -> None:
        self._host = host

    async def ask_to_end(self, at: Incarnation, *, number: int, grace_s: float) -> None:
        """Send the stop signal to the main process and wait for its end, at most the grace."""
        if at.state is None or not processes.send_signal(at.state.main, number):
            return
        with anyio.move_on_after(grace_s):
            await wait_gone(at.state.main)

    async def clear(self, at: Incarnation, devices: tuple[DeviceId, ...]) -> bool:
        """Kill whatever is left of the tree and wait until its devices are free.

        Returns False if a process could not be ended within 10 s: it may hold devices for ever.
        """
        killed: set[Process] = set()
        deadline = self._host.clock.monotonic() + _KILL_LIMIT_S
        # The survey runs in a loop: a process may fork between being seen and being killed.
        while left := await anyio.to_thread.run_sync(self._kill, at):
            killed |= left
            if self._host.clock.monotonic() > deadline:
                log.error(
                    "engine cannot be killed", cookie=at.cookie, pids=sorted(p.pid for p in left)
                )
                return False
            await self._host.clock.sleep(_POLL_S)
        await self._end_shim(at)
        if devices:
            await self._wait_memory(at, devices, killed | at.known)
        _remove_cgroup(at)
        return True

    def _kill(self, at: Incarnation) -> frozenset[Process]:
        left = at.tree(processes.process_table())
        if left and at.record is not None and at.record.cgroup is not None:
            try:
                (Path(at.record.cgroup) / "cgroup.kill").write_text("1")
            except OSError:
                pass  # an older kernel; the loop below is enough
        for process in left:
            processes.send_signal(process, signal.SIGKILL)
        at.known |= left
        return left

    async def _end_shim(self, at: Incarnation) -> None:
        if at.state is not None:
            with anyio.move_on_after(_SHIM_LIMIT_S) as limit:
                await wait_gone(at.state.shim)
            if limit.cancelled_caught:
                # It has nobody left to wait for: stopped by somebody, or stuck on a disk.
                processes.send_signal(at.state.shim, signal.SIGKILL)
                await wait_gone(at.state.shim)
        if at.shim_child is not None and processes.reap(at.shim_child):
            at.shim_child = None

    async def _wait_memory(
        self,
        at: Incarnation,
        devices: tuple[DeviceId, ...],
        ended: set[Process] | frozenset[Process],
    ) -> None:
        pids = {process.pid for process in ended}
        deadline = self._host.clock.monotonic() + _MEMORY_LIMIT_S
        while True:
            held = [
                device.id
                for device in await self._host.devices()
                if device.id in devices
                and (
                    any(process.pid in pids for process in device.processes)
                    or (
                        device.id in at.memory_before
                        and (device.memory_used_mib or 0)
                        > at.memory_before[device.id] + _MEMORY_SLACK_MIB
                    )
                )
            ]
            if not held:
                return
            if self._host.clock.monotonic() > deadline:
                log.warning("device memory did not come back", devices=",".join(held))
                return
            await self._host.clock.sleep(1.0)


async def wait_gone(process: Process) -> None:
    """Return when exactly this process has ended."""
    descriptor = processes.open_pidfd(process)
    if descriptor is None:
        return
    try:
        await anyio.wait_readable(descriptor)
    finally:
        processes.close(descriptor)


def _remove_cgroup(at: Incarnation) -> None:
    if at.record is not None and at.record.cgroup is not None:
        try:
            Path(at.record.cgroup).rmdir()
        except OSError:
            pass  # made again or used again by the next incarnation
