"""Xids: what NVIDIA's driver says by itself when a device goes wrong. NVML tells each only once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmgw.domain.ids import DeviceId
from llmgw.domain.nodes import Device, DeviceHealth
from llmgw.logs import get_logger

log = get_logger(__name__)

# Of NVIDIA's catalogue those after which the device itself must be reset, or the machine started
# again. The others are mostly a program's fault (13, 31, 43), or the device goes on.
_FATAL = frozenset({48, 62, 64, 79, 95, 119, 120, 140, 143})
_MOST = 1000  # a broken device says the same thing over and over


class XidWatch:
    """The Xids of each device since NVML was begun."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._watched: set[str] = set()
        self._last: dict[str, int] = {}
        self._fatal: dict[str, int] = {}

    def watch(self, handle: object, uuid: DeviceId) -> None:
        """Have this device's Xids told from now on. Where that cannot be, none is known."""
        if uuid in self._watched:
            return
        self._watched.add(uuid)  # also if it is refused, which it would be each time
        nvml = self._nvml
        try:
            if self._events is None:
                self._events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        except (nvml.NVMLError, AttributeError):
            pass  # WSL and older libraries have none

    def read(self) -> None:
        """Take in what was said since the last call. Never waits."""
        nvml = self._nvml
        if self._events is None:
            return
        for _ in range(_MOST):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = nvml.nvmlDeviceGetUUID(event.device)
            except nvml.NVMLError:
                return  # nothing more; or of a device that is lost, which is seen without it
            name = uuid.decode(errors="replace") if isinstance(uuid, bytes) else str(uuid)
            xid = int(event.eventData)
            if self._last.get(name) != xid:
                log.warning("device reports an error", device=name, xid=xid)
            self._last[name] = xid
            if xid in _FATAL:
                self._fatal.setdefault(name, xid)

    def marked(self, device: Device) -> Device:
        """Return it with its last Xid among its labels, failed after one that ends its use."""
        uuid = device.parent or device.id
        if uuid not in self._last:
            return device
        device = replace(device, labels={**device.labels, "xid": str(self._last[uuid])})
        if (fatal := self._fatal.get(uuid)) is None or device.health is DeviceHealth.FAILED:
            return device
        return replace(
            device,
            health=DeviceHealth.FAILED,
            health_reason=f"Xid {fatal}: stop the agent, reset the device, and start the agent",
        )
