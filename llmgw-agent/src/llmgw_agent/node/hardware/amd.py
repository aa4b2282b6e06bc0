"""AMD devices as the amdgpu driver shows them in sysfs. No library is needed."""

from __future__ import annotations

from pathlib import Path

from llmgw.domain.ids import DeviceId
from llmgw.domain.nodes import Device, DeviceHealth

_DRM = Path("/sys/class/drm")
_AMD = "0x1002"


class AmdProbe:
    """Reads AMD devices."""

    vendor = "amd"

    def __init__(self, drm: Path = _DRM) -> None:
        self._drm = drm

    def devices(self, our_pids: frozenset[int]) -> tuple[Device, ...]:  # noqa: ARG002 -- sysfs names no processes
        cards = sorted(
            path.parent
            for path in self._drm.glob("card*/device")
            if path.parent.name[4:].isdigit() and _read(path / "vendor") == _AMD
        )
        return tuple(_device(index, card / "device") for index, card in enumerate(cards))


def _device(index: int, device: Path) -> Device:
    unique = _read(device / "unique_id")
    address = device.resolve().name
    total = _number(device / "mem_info_vram_total")
    used = _number(device / "mem_info_vram_used")
    busy = _number(device / "gpu_busy_percent")
    enabled = _read(device / "enable")
    return Device(
        # The runtime's own form, as ROCR_VISIBLE_DEVICES takes it; older cards have no such id.
        id=DeviceId(f"GPU-{unique.removeprefix('0x')}" if unique else f"amd-{address}"),
        index=index,
        kind=_read(device / "product_name") or f"AMD {_read(device / 'device') or 'device'}",
        vendor=AmdProbe.vendor,
        memory_mib=None if total is None else total >> 20,
        memory_used_mib=None if used is None else used >> 20,
        utilisation=None if busy is None else min(1.0, busy / 100),
        health=DeviceHealth.FAILED if enabled == "0" else DeviceHealth.OK,
        health_reason="the kernel has switched it off" if enabled == "0" else "",
        pci_address=address,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None
