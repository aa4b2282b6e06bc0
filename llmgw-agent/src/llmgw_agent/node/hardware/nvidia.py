"""NVIDIA devices by NVML. Every single call may fail, and then costs its own field only.

WSL, Jetson, GB200, MIG, missing permissions and cards that fell off the bus each refuse some
of the questions (C045, C046). What cannot be read is None, never 0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from llmgw.domain.ids import DeviceId
from llmgw.domain.nodes import Device, DeviceHealth, DeviceProcess
from llmgw_agent.node.hardware.machine import memory_mib
from llmgw_agent.node.hardware.xid import XidWatch

_T = TypeVar("_T")

_MAX_LINKS = 18
_LOST = ("GpuIsLost", "GpuNotFound", "ResetRequired")


class Nvml(Protocol):
    """The part of the `pynvml` module that is used; tests replay recorded answers through it.

    `NVMLError` is its root of errors; everything else is called as NVML names it.
    """

    @property
    def NVMLError(self) -> type[Exception]: ...  # noqa: N802 -- NVML's own name

    def __getattr__(self, name: str) -> Any: ...


class NvidiaProbe:
    """Reads NVIDIA devices; recovers by itself from a driver that was reloaded."""

    vendor = "nvidia"

    def __init__(self, load: Callable[[], Nvml] | None = None) -> None:
        """load: imports NVML, raising ImportError where there is none."""
        self._load = load or _load_pynvml
        self._nvml: Nvml | None = None
        self._xids = XidWatch(None)
        self._seen: dict[int, Device] = {}  #: by index, as last read whole

    def devices(self, our_pids: frozenset[int]) -> tuple[Device, ...]:
        nvml = self._begin()
        if nvml is None:
            return self._all_failed("the NVIDIA driver does not answer")
        try:
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            # A driver that was reloaded needs a new beginning; the next call makes it.
            self._end(nvml)
            return self._all_failed(_words(error))
        self._xids.read()
        found: list[Device] = []
        handles: dict[int, object] = {}
        for index in range(max(count, *self._seen) if self._seen else count):
            found.extend(self._device(nvml, index, our_pids, handles))
        return _with_islands(nvml, found, handles)

    def _begin(self) -> Nvml | None:
        if self._nvml is None:
            try:
                nvml = self._load()
            except ImportError:
                return None
            try:
                nvml.nvmlInit()
            except nvml.NVMLError:
                return None  # no library, no driver or no permission: a node without NVIDIA
            self._nvml, self._xids = nvml, XidWatch(nvml)
        return self._nvml

    def _end(self, nvml: Nvml) -> None:
        self._nvml = None
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            pass  # it was broken anyway

    def _all_failed(self, reason: str) -> tuple[Device, ...]:
        return tuple(_failed(device, reason) for _, device in sorted(self._seen.items()))

    def _device(
        self, nvml: Nvml, index: int, our_pids: frozenset[int], handles: dict[int, object]
    ) -> Sequence[Device]:
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError as error:
            known = self._seen.get(index)
            if known is None:
                known = Device(
                    id=DeviceId(f"nvidia-unknown-{index}"),
                    index=index,
                    kind="unknown NVIDIA device",
                    vendor=self.vendor,
                    memory_mib=None,
                )
            return [_failed(known, _words(error))]
        self._xids.watch(handle, DeviceId(uuid))
        device = self._xids.marked(_read(nvml, handle, DeviceId(uuid), index, our_pids))
        self._seen[index] = device
        handles[index] = handle
        partitions = _partitions(nvml, handle, device, our_pids)
        if partitions == []:
            return [
                _failed(
                    device, "MIG is on and no partition has been made: make one, or turn it off"
                )
            ]
        return [self._xids.marked(part) for part in partitions or ()] or [device]


def _read(
    nvml: Nvml, handle: object, device: DeviceId, index: int, our_pids: frozenset[int]
) -> Device:
    """Read one device or MIG partition, each field by itself."""
    ask = _Asker(nvml)
    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    # Unified memory: the question is refused, and the device uses the machine's own RAM.
    shared = memory is None and not ask.lost
    total, available = memory_mib() if shared else (None, None)
    used = None if total is None or available is None else total - available
    rates = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    capability = ask(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    driver = ask(lambda: _text(nvml.nvmlSystemGetDriverVersion()))
    ecc = ask(lambda: nvml.nvmlDeviceGetEccMode(handle))
    uncorrected = ask(
        lambda: nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
    )
    pci = ask(lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    labels = {
        "driver": driver,
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
        "ecc": None
        if ecc is None
        else "on"
        if ecc[0]
        else "off",  # now; a change waits for a reset
        "ecc_uncorrected": None if not uncorrected else str(uncorrected),
    }
    return Device(
        id=device,
        index=index,
        kind=ask(lambda: _text(nvml.nvmlDeviceGetName(handle))) or "NVIDIA device",
        vendor=NvidiaProbe.vendor,
        memory_mib=total if memory is None else int(memory.total) >> 20,
        memory_used_mib=used if memory is None else int(memory.used) >> 20,
        memory_shared=shared,
        utilisation=None if rates is None else min(1.0, int(rates.gpu) / 100),
        health=DeviceHealth.FAILED if ask.lost else DeviceHealth.OK,
        health_reason=ask.lost,
        pci_address=pci,
        labels={name: value for name, value in labels.items() if value is not None},
        processes=_processes(nvml, handle, ask, our_pids),
    )


class _Asker:
    """Asks one question; a refusal is None, and a device that was lost is remembered."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self.lost = ""  #: why the device is gone; "" while it is not

    def __call__(self, question: Callable[[], _T]) -> _T | None:
        try:
            return question()
        except self._nvml.NVMLError as error:
            if any(word in type(error).__name__ for word in _LOST):
                self.lost = _words(error)
            return None
        except AttributeError:
            return None  # a function that this version of the library does not have


def _processes(
    nvml: Nvml, handle: object, ask: _Asker, our_pids: frozenset[int]
) -> tuple[DeviceProcess, ...]:
    found: dict[int, DeviceProcess] = {}
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for process in ask(lambda name=name: getattr(nvml, name)(handle)) or ():  # type: ignore[misc]
            used = process.usedGpuMemory
            pid = int(process.pid)
            found[pid] = DeviceProcess(
                pid=pid,
                memory_mib=None if used is None else int(used) >> 20,
                ours=pid in our_pids,
            )
    return tuple(found[pid] for pid in sorted(found))


def _partitions(
    nvml: Nvml, handle: object, parent: Device, our_pids: frozenset[int]
) -> list[Device] | None:
    """Return the MIG partitions of a device; None where it is not partitioned."""
    ask = _Asker(nvml)
    mode = ask(lambda: nvml.nvmlDeviceGetMigMode(handle))
    if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return None
    found = []
    for number in range(int(ask(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0)):
        part = ask(lambda n=number: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, n))  # type: ignore[misc]
        uuid = ask(lambda p=part: _text(nvml.nvmlDeviceGetUUID(p))) if part else None  # type: ignore[misc]
        if part is None or uuid is None:
            continue
        found.append(
            _replace_parent(_read(nvml, part, DeviceId(uuid), parent.index, our_pids), parent)
        )
    return found


def _replace_parent(part: Device, parent: Device) -> Device:
    kind = part.kind if part.kind != "NVIDIA device" else f"{parent.kind} MIG"
    return replace(part, parent=parent.id, kind=kind, pci_address=parent.pci_address)


def _with_islands(
    nvml: Nvml, devices: list[Device], handles: dict[int, object]
) -> tuple[Device, ...]:
    """Name the groups of devices that NVLink joins, directly or through a switch."""
    neighbours: dict[int, set[str]] = {}
    by_address = {device.pci_address.lower(): device for device in devices if device.pci_address}
    switched: set[int] = set()
    for index, handle in handles.items():
        ask = _Asker(nvml)
        for link in range(_MAX_LINKS):
            active = ask(lambda h=handle, n=link: nvml.nvmlDeviceGetNvLinkState(h, n))  # type: ignore[misc]
            if not active:
                continue
            remote = ask(lambda h=handle, n=link: nvml.nvmlDeviceGetNvLinkRemotePciInfo(h, n))  # type: ignore[misc]
            address = _text(remote.busId).lower() if remote is not None else ""
            if address in by_address:
                neighbours.setdefault(index, set()).add(address)
            else:
                switched.add(index)  # what it leads to is no GPU: an NVSwitch joins all of them
    groups: list[set[int]] = [switched] if switched else []
    for index, addresses in neighbours.items():
        joined = {index, *(by_address[address].index for address in addresses)}
        for group in [item for item in groups if item & joined]:
            joined |= group
            groups.remove(group)
        groups.append(joined)
    island = {
        index: f"nvlink-{min(group)}" for group in groups for index in group if len(group) > 1
    }
    return tuple(replace(device, island=island.get(device.index)) for device in devices)


def _failed(device: Device, reason: str) -> Device:
    return replace(
        device,
        health=DeviceHealth.FAILED,
        health_reason=reason,
        utilisation=None,
        memory_used_mib=None,
        processes=(),
    )


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _load_pynvml() -> Nvml:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")  # as `pynvml` does
    except OSError as error:
        # Most nodes without NVIDIA's devices: a megabyte less than to be told so by `pynvml`.
        raise ImportError(str(error)) from None
    import pynvml

    module: Nvml = pynvml
    return module
