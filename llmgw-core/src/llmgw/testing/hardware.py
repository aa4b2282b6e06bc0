"""The contract of hardware probes as tests.

from llmgw.testing.hardware import ProbeContract

class TestMine(ProbeContract):
    def make(self, folder):
        return MyProbe(described(folder, devices=2))

    def make_without(self, folder):
        return MyProbe(folder / "missing")

    def make_refusing(self, folder):
        return MyProbe(described(folder, devices=2, readings=False))

    def make_losing(self, folder):
        return MyProbe(described(folder, devices=2, lost=1))

A described machine stands for the driver: these tests run where no device is.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from llmgw.contracts.hardware import HardwareProbe
from llmgw.domain.ids import DeviceId, safe_name_problem
from llmgw.domain.nodes import Device, DeviceHealth

__all__ = ["ProbeContract"]

_MOST_MIB = 16 << 20  # 16 TiB on one device: whoever says more says bytes or KiB


class ProbeContract:
    """Subclass it, give the four methods, and pytest finds the rest."""

    def make(self, folder: Path) -> HardwareProbe:
        """Return a probe of a machine with two devices or more, all of them well.

        folder: an empty one, for whatever the driver's stand-in needs.
        """
        raise NotImplementedError

    def make_without(self, folder: Path) -> HardwareProbe:
        """Return one of a machine that has no such device, nor its driver."""
        raise NotImplementedError

    def make_refusing(self, folder: Path) -> HardwareProbe:
        """Return one of the same machine, whose driver names the devices and refuses to read them."""
        raise NotImplementedError

    def make_losing(self, folder: Path) -> HardwareProbe:
        """Return one of the same machine, whose last device no longer works."""
        raise NotImplementedError

    def test_its_vendor_can_be_written_in_a_label(self, tmp_path: Path) -> None:
        assert safe_name_problem(self.make(tmp_path).vendor) is None

    def test_a_healthy_machine_is_read_whole(self, tmp_path: Path) -> None:
        probe = self.make(tmp_path)
        devices = probe.devices(frozenset())
        assert len(devices) >= 2, "make() must describe two devices or more"
        for device in devices:
            assert device.health is DeviceHealth.OK
            assert device.memory_mib, "a device whose memory nobody knows gets no model"
        self._check(probe, devices)

    def test_a_machine_without_them_has_none(self, tmp_path: Path) -> None:
        probe = self.make_without(tmp_path)
        for _ in range(2):  # the agent asks for ever
            assert probe.devices(frozenset()) == ()

    def test_what_is_refused_is_unknown_and_the_devices_stay(self, tmp_path: Path) -> None:
        """C045"""
        whole, refusing = _folders(tmp_path)
        probe = self.make_refusing(refusing)
        devices = probe.devices(frozenset())
        assert _ids(devices) == _ids(self.make(whole).devices(frozenset()))
        for device in devices:
            assert device.utilisation is None
            if not device.memory_shared:  # then it is the machine's own, which can be read
                assert (device.memory_mib, device.memory_used_mib) == (None, None)
        self._check(probe, devices)

    def test_one_that_is_lost_does_not_hide_the_others(self, tmp_path: Path) -> None:
        """C046"""
        whole, losing = _folders(tmp_path)
        probe = self.make_losing(losing)
        before = self.make(whole).devices(frozenset())
        for _ in range(2):
            devices = probe.devices(frozenset())
            assert len(devices) == len(before)
            *others, lost = devices
            assert {device.health for device in others} == {DeviceHealth.OK}
            assert lost.health is DeviceHealth.FAILED
            assert lost.memory_mib in (None, before[-1].memory_mib)
            self._check(probe, devices)

    def test_a_device_keeps_its_id_when_the_agent_starts_again(self, tmp_path: Path) -> None:
        """Replicas hold devices by id."""
        before, after = _folders(tmp_path)
        probe = self.make(before)
        first = _ids(probe.devices(frozenset()))
        assert _ids(probe.devices(frozenset())) == first
        assert _ids(self.make(after).devices(frozenset())) == first

    def test_it_may_be_asked_on_another_thread_each_time(self, tmp_path: Path) -> None:
        probe = self.make(tmp_path)
        answers = []
        for _ in range(2):
            with ThreadPoolExecutor(1) as thread:
                answers.append(_ids(thread.submit(probe.devices, frozenset()).result(timeout=10)))
        assert answers[0] == answers[1]

    def test_processes_are_ours_if_the_agent_says_so(self, tmp_path: Path) -> None:
        probe = self.make(tmp_path)
        seen = [item for device in probe.devices(frozenset()) for item in device.processes]
        assert not any(process.ours for process in seen)
        pids = frozenset(process.pid for process in seen)
        again = [item for device in probe.devices(pids) for item in device.processes]
        assert all(process.ours for process in again)

    def _check(self, probe: HardwareProbe, devices: tuple[Device, ...]) -> None:
        ids = _ids(devices)
        assert len(set(ids)) == len(ids), "ids are unique on the node"
        for device in devices:
            _check_device(device, probe.vendor)


def _check_device(device: Device, vendor: str) -> None:
    assert device.vendor == vendor
    assert device.index >= 0
    assert (device.health_reason == "") == (device.health is DeviceHealth.OK)
    assert str(device.id).isprintable()
    assert not set(str(device.id)) & set(" ,"), "engines are given ids in a list with commas"
    for text in (device.kind, device.health_reason, *device.labels, *device.labels.values()):
        assert text.isprintable(), f"{text!r} is shown in one line"
    assert device.kind.strip()
    for mib in (device.memory_mib, device.memory_used_mib):
        assert mib is None or (type(mib) is int and 0 <= mib < _MOST_MIB), f"{mib} is no MiB"
    if device.memory_mib is not None:
        assert device.memory_mib > 0, "unknown is None, never 0"
        assert device.memory_used_mib is None or device.memory_used_mib <= device.memory_mib
    assert device.utilisation is None or 0.0 <= device.utilisation <= 1.0


def _ids(devices: tuple[Device, ...]) -> list[DeviceId]:
    return [device.id for device in devices]


def _folders(folder: Path) -> tuple[Path, Path]:
    """Return two empty folders, for two machines."""
    both = folder / "one", folder / "other"
    for path in both:
        path.mkdir()
    return both
