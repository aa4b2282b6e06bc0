"""The kit of hardware probes lets a careful one pass, and finds each fault that it is there for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmgw.domain.ids import DeviceId
from llmgw.domain.nodes import Device, DeviceHealth, DeviceProcess
from llmgw.testing.hardware import ProbeContract

GIB = 1024
Change = Callable[[Device], Device]


class Probe:
    """Says what it was made with, each device changed by `fault` first."""

    vendor = "acme"

    def __init__(self, *devices: Device, fault: Change = lambda device: device) -> None:
        self._devices = devices
        self._fault = fault

    def devices(self, our_pids: frozenset[int]) -> tuple[Device, ...]:
        return tuple(self._fault(_told(device, our_pids)) for device in self._devices)


def _told(device: Device, our_pids: frozenset[int]) -> Device:
    processes = tuple(replace(item, ours=item.pid in our_pids) for item in device.processes)
    return replace(device, processes=processes)


def device(index: int, **changes: Any) -> Device:
    fields: dict[str, Any] = {
        "id": DeviceId(f"acme-{index}"),
        "index": index,
        "kind": "Acme NPU",
        "vendor": "acme",
        "memory_mib": 80 * GIB,
        "memory_used_mib": 2 * GIB,
        "utilisation": 0.5,
        "processes": (DeviceProcess(pid=7, memory_mib=GIB, ours=False),),
    }
    return Device(**(fields | changes))


REFUSED: dict[str, Any] = {"memory_mib": None, "memory_used_mib": None, "utilisation": None}
LOST: dict[str, Any] = {**REFUSED, "health": DeviceHealth.FAILED, "health_reason": "gone"}


class TestCareful(ProbeContract):
    def fault(self, device: Device) -> Device:
        return device

    def make(self, folder: Path) -> Probe:
        return Probe(device(0), device(1), fault=self.fault)

    def make_without(self, folder: Path) -> Probe:
        return Probe(fault=self.fault)

    def make_refusing(self, folder: Path) -> Probe:
        return Probe(device(0, **REFUSED), device(1, **REFUSED), fault=self.fault)

    def make_losing(self, folder: Path) -> Probe:
        return Probe(device(0), device(1, **LOST), fault=self.fault)


FAULTS: dict[str, tuple[Change, str]] = {
    "memory in bytes": (
        lambda device: replace(device, memory_mib=80 << 30),
        "test_a_healthy_machine_is_read_whole",
    ),
    "one id for all": (
        lambda device: replace(device, id=DeviceId("acme")),
        "test_a_healthy_machine_is_read_whole",
    ),
    "an id that no list can hold": (
        lambda device: replace(device, id=DeviceId(f"Acme NPU, {device.index}")),
        "test_a_healthy_machine_is_read_whole",
    ),
    "a name of two lines": (
        lambda device: replace(device, kind="Acme\nNPU"),
        "test_a_healthy_machine_is_read_whole",
    ),
    "per cent": (
        lambda device: replace(device, utilisation=50),
        "test_a_healthy_machine_is_read_whole",
    ),
    "another vendor": (
        lambda device: replace(device, vendor="nvidia"),
        "test_a_healthy_machine_is_read_whole",
    ),
    "0 for unknown": (
        lambda device: replace(device, memory_used_mib=device.memory_used_mib or 0),
        "test_what_is_refused_is_unknown_and_the_devices_stay",
    ),
    "a failure without a reason": (
        lambda device: replace(device, health_reason=""),
        "test_one_that_is_lost_does_not_hide_the_others",
    ),
    "every process is ours": (
        lambda device: replace(
            device, processes=tuple(replace(item, ours=True) for item in device.processes)
        ),
        "test_processes_are_ours_if_the_agent_says_so",
    ),
}


@pytest.mark.parametrize(("change", "test"), FAULTS.values(), ids=FAULTS)
def test_a_careless_probe_breaks_the_rules(change: Change, test: str, tmp_path: Path) -> None:
    class Careless(TestCareful):
        def fault(self, device: Device) -> Device:
            return change(device)

    with pytest.raises(AssertionError):
        getattr(Careless(), test)(tmp_path)


def test_a_machine_that_hides_the_lost_device_breaks_the_rules(tmp_path: Path) -> None:
    class Hiding(TestCareful):
        def make_losing(self, folder: Path) -> Probe:
            return Probe(device(0))

    with pytest.raises(AssertionError):
        Hiding().test_one_that_is_lost_does_not_hide_the_others(tmp_path)


def test_ids_that_are_counted_anew_break_the_rules(tmp_path: Path) -> None:
    class Counting(TestCareful):
        made = 0

        def make(self, folder: Path) -> Probe:
            self.made += 2
            return Probe(device(self.made), device(self.made + 1))

    with pytest.raises(AssertionError):
        Counting().test_a_device_keeps_its_id_when_the_agent_starts_again(tmp_path)
