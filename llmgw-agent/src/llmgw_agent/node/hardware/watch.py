"""Asks every probe, each on a thread of its own, and remembers what they said last. A shell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import anyio
import anyio.to_thread

from llmgw.contracts.hardware import HardwareProbe
from llmgw.domain.nodes import Device, DeviceHealth
from llmgw.logs import get_logger

log = get_logger(__name__)

_LIMIT_S = 10.0  # a healthy driver answers in milliseconds


class DeviceWatch:
    """The node's devices, as fresh as their drivers allow."""

    def __init__(
        self,
        probes: Mapping[str, HardwareProbe],
        *,
        our_pids: Callable[[], frozenset[int]],
        limit_s: float = _LIMIT_S,
    ) -> None:
        self._probes = probes
        self._our_pids = our_pids
        self._limit_s = limit_s
        self._last: dict[str, tuple[Device, ...]] = {}
        self._hanging: set[str] = set()
        self._limiter = anyio.CapacityLimiter(max(1, len(probes)))

    @property
    def devices(self) -> tuple[Device, ...]:
        """What was read last, in order of vendor and index. Never waits."""
        return tuple(device for vendor in sorted(self._last) for device in self._last[vendor])

    async def read(self) -> tuple[Device, ...]:
        """Ask every probe now. A driver that hangs is waited for once and marked failed."""
        pids = self._our_pids()
        async with anyio.create_task_group() as group:
            for vendor, probe in self._probes.items():
                if vendor not in self._hanging:
                    group.start_soon(self._read_one, vendor, probe, pids)
        return self.devices

    async def _read_one(self, vendor: str, probe: HardwareProbe, pids: frozenset[int]) -> None:
        answer: list[tuple[Device, ...]] = []
        self._hanging.add(vendor)  # until it answers, however late

        def ask() -> None:
            try:
                devices = probe.devices(pids)
            finally:
                self._hanging.discard(vendor)
            answer.append(devices)

        with anyio.move_on_after(self._limit_s):
            try:
                await anyio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=self._limiter)
            except Exception:
                # A probe is a plugin: its bug must not take the other vendors' devices along.
                log.exception("hardware probe failed", vendor=vendor)
        if answer:
            self._last[vendor] = answer[0]
            return
        if vendor in self._hanging:
            log.error("driver does not answer", vendor=vendor, waited_s=self._limit_s)
        self._last[vendor] = tuple(
            replace(device, health=DeviceHealth.FAILED, health_reason="the driver does not answer")
            for device in self._last.get(vendor, ())
        )
