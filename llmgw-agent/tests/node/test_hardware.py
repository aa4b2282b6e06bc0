"""Devices, at the boundary where the driver is asked."""

# ruff: noqa: N802, N815 -- NVML's own names

from pathlib import Path
from typing import Any

import pytest

from llmgw.domain.ids import DeviceId
from llmgw.domain.nodes import Device, DeviceHealth
from llmgw.testing.hardware import ProbeContract
from llmgw_agent.node.hardware.amd import AmdProbe
from llmgw_agent.node.hardware.machine import memory_mib
from llmgw_agent.node.hardware.nvidia import NvidiaProbe


class NVMLError(Exception):
    """Root of NVML's errors."""


class NVMLErrorGpuIsLost(NVMLError):
    pass


class Struct:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class ReplayedNvml:
    """NVML as recorded: `answers[function][index]`, an exception where the driver refused."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    def __init__(self, count: int, **answers: Any) -> None:
        self.count = count
        self.answers: dict[str, Any] = {**h100(count), **answers}
        self.begun = 0

    def nvmlInit(self) -> None:
        if (refusal := self.answers.get("nvmlInit")) is not None:
            raise refusal
        self.begun += 1

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        if isinstance(self.count, Exception):
            raise self.count
        return self.count

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.95.05"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return int(self.answer("nvmlDeviceGetHandleByIndex", index))

    def answer(self, name: str, handle: int, *more: Any) -> Any:
        answers = self.answers[name]
        found = answers[handle] if isinstance(answers, list) else answers
        found = found(*more) if callable(found) else found
        if isinstance(found, Exception):
            raise found
        return found

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)
        return lambda handle, *more: self.answer(name, handle, *more)


def h100(count: int) -> dict[str, Any]:
    gib = 1 << 30
    return {
        "nvmlDeviceGetHandleByIndex": list(range(count)),
        "nvmlDeviceGetUUID": [f"GPU-{index:04x}" for index in range(count)],
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetMemoryInfo": Struct(total=80 * gib, used=2 * gib, free=78 * gib),
        "nvmlDeviceGetUtilizationRates": Struct(gpu=50, memory=10),
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetEccMode": (1, 1),
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetPciInfo": [
            Struct(busId=f"00000000:{index:02X}:00.0".encode()) for index in range(count)
        ],
        "nvmlDeviceGetComputeRunningProcesses": [[] for _ in range(count)],
        "nvmlDeviceGetGraphicsRunningProcesses": [[] for _ in range(count)],
        "nvmlDeviceGetMigMode": NVMLError("Not Supported"),
        "nvmlDeviceGetNvLinkState": NVMLError("Not Supported"),
    }


def read(nvml: ReplayedNvml, pids: frozenset[int] = frozenset()) -> tuple[Device, ...]:
    return NvidiaProbe(lambda: nvml).devices(pids)


def test_a_whole_device_is_read() -> None:
    (device,) = read(ReplayedNvml(1))
    assert device == Device(
        id=DeviceId("GPU-0000"),
        index=0,
        kind="NVIDIA H100 80GB HBM3",
        vendor="nvidia",
        memory_mib=80 * 1024,
        memory_used_mib=2 * 1024,
        utilisation=0.5,
        pci_address="00000000:00:00.0",
        labels={"driver": "580.95.05", "compute_capability": "9.0", "ecc": "on"},
    )


def test_errors_of_memory_that_could_not_be_corrected_are_counted() -> None:
    (device,) = read(ReplayedNvml(1, nvmlDeviceGetEccMode=(0, 1), nvmlDeviceGetTotalEccErrors=3))
    assert (device.labels["ecc"], device.labels["ecc_uncorrected"]) == ("off", "3")


@pytest.mark.parametrize(
    ("question", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", "utilisation"),
        ("nvmlDeviceGetPciInfo", "pci_address"),
        ("nvmlDeviceGetCudaComputeCapability", None),
        ("nvmlDeviceGetEccMode", None),
        ("nvmlDeviceGetTotalEccErrors", None),
        ("nvmlDeviceGetComputeRunningProcesses", None),
        ("nvmlDeviceGetName", None),
    ],
)
@pytest.mark.parametrize("refusal", ["Not Supported", "Unknown Error", "Insufficient Permissions"])
def test_a_refused_question_costs_its_own_field_only(
    question: str, field: str | None, refusal: str
) -> None:
    (device,) = read(ReplayedNvml(1, **{question: NVMLError(refusal)}))
    assert device.health is DeviceHealth.OK
    assert device.memory_mib == 80 * 1024
    if field is not None:
        assert getattr(device, field) is None


def test_a_function_that_an_old_library_lacks_is_a_refusal() -> None:
    nvml = ReplayedNvml(1)
    for name in ("nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetUtilizationRates"):
        del nvml.answers[name]
    (device,) = read(nvml)
    assert (device.utilisation, device.memory_mib) == (None, 80 * 1024)


def test_unified_memory_is_the_machines_and_marked_as_shared() -> None:
    (device,) = read(ReplayedNvml(1, nvmlDeviceGetMemoryInfo=NVMLError("Not Supported")))
    assert device.memory_shared
    assert device.memory_mib == memory_mib()[0]


def test_a_name_as_bytes_that_are_no_text_is_shown_with_marks() -> None:
    (device,) = read(ReplayedNvml(1, nvmlDeviceGetName=b"NVIDIA \xff"))
    assert device.kind == "NVIDIA \ufffd"


def test_foreign_and_own_memory_are_told_apart() -> None:
    rows = [Struct(pid=1, usedGpuMemory=1 << 30), Struct(pid=2, usedGpuMemory=None)]
    (device,) = read(ReplayedNvml(1, nvmlDeviceGetComputeRunningProcesses=[rows]), frozenset({2}))
    assert [(item.pid, item.memory_mib, item.ours) for item in device.processes] == [
        (1, 1024, False),
        (2, None, True),
    ]


@pytest.mark.parametrize("since_the_start", [True, False])
def test_one_lost_device_does_not_hide_the_others(since_the_start: bool) -> None:
    nvml = ReplayedNvml(4)
    probe = NvidiaProbe(lambda: nvml)
    if not since_the_start:
        probe.devices(frozenset())
    nvml.answers["nvmlDeviceGetHandleByIndex"][2] = NVMLErrorGpuIsLost("GPU is lost")
    found = probe.devices(frozenset())
    assert [item.index for item in found] == [0, 1, 2, 3]
    assert [item.id for item in found if item.health is DeviceHealth.OK] == [
        "GPU-0000",
        "GPU-0001",
        "GPU-0003",
    ]
    lost = found[2]
    assert (lost.health, lost.health_reason) == (DeviceHealth.FAILED, "GPU is lost")
    assert lost.id == ("nvidia-unknown-2" if since_the_start else "GPU-0002")


class Reporting(ReplayedNvml):
    """One that tells Xids; `said` is what it has to tell, each once."""

    nvmlEventTypeXidCriticalError = 8

    def __init__(self, count: int, **answers: Any) -> None:
        super().__init__(count, **answers)
        self.said: list[tuple[int, int]] = []  #: device and Xid
        self.heard: list[int] = []  #: devices whose Xids are told

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: str) -> None:
        assert (kinds, events) == (self.nvmlEventTypeXidCriticalError, "events")
        self.heard.append(handle)

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Struct:
        assert (events, timeout_ms) == ("events", 0)
        if not self.said:
            raise NVMLError("Timeout")
        device, xid = self.said.pop(0)
        return Struct(device=device, eventData=xid)


def test_a_device_whose_error_needs_a_reset_is_failed_until_the_driver_begins_anew() -> None:
    nvml = Reporting(2)
    probe = NvidiaProbe(lambda: nvml)
    probe.devices(frozenset())
    nvml.said = [(1, 48), (1, 31)]
    for _ in range(2):  # each is told once, and remembered
        healthy, broken = probe.devices(frozenset())
        assert (healthy.health, "xid" in healthy.labels) == (DeviceHealth.OK, False)
        assert broken.health is DeviceHealth.FAILED
        assert "Xid 48" in broken.health_reason
        assert broken.labels["xid"] == "31"
    assert nvml.heard == [0, 1]
    nvml.count = NVMLError("Uninitialized")  # type: ignore[assignment]
    probe.devices(frozenset())
    nvml.count = 2
    assert probe.devices(frozenset())[1].health is DeviceHealth.OK


def test_a_programs_mistake_is_told_and_costs_no_device() -> None:
    nvml = Reporting(1)
    probe = NvidiaProbe(lambda: nvml)
    probe.devices(frozenset())
    nvml.said = [(0, 31)]
    (device,) = probe.devices(frozenset())
    assert (device.health, device.labels["xid"]) == (DeviceHealth.OK, "31")


def test_a_driver_that_was_reloaded_is_picked_up_without_a_restart() -> None:
    nvml = ReplayedNvml(2)
    probe = NvidiaProbe(lambda: nvml)
    probe.devices(frozenset())
    nvml.count = NVMLError("Driver Not Loaded")  # type: ignore[assignment]
    assert {item.health for item in probe.devices(frozenset())} == {DeviceHealth.FAILED}
    nvml.count = 2
    assert {item.health for item in probe.devices(frozenset())} == {DeviceHealth.OK}
    assert nvml.begun == 2


def test_partitions_take_the_place_of_their_device() -> None:
    nvml = ReplayedNvml(
        1,
        nvmlDeviceGetMigMode=(1, 1),
        nvmlDeviceGetMaxMigDeviceCount=2,
        nvmlDeviceGetMigDeviceHandleByIndex=lambda number: (1, 2)[number],
    )
    nvml.answers["nvmlDeviceGetUUID"] = ["GPU-0000", "MIG-a", "MIG-b"]
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        nvml.answers[name] = [[], [], []]
    nvml.answers["nvmlDeviceGetUtilizationRates"] = NVMLError("Not Supported")
    nvml.answers["nvmlDeviceGetPciInfo"] += [NVMLError("Not Supported")] * 2
    found = read(nvml)
    assert [(item.id, item.parent) for item in found] == [
        ("MIG-a", "GPU-0000"),
        ("MIG-b", "GPU-0000"),
    ]
    assert {item.pci_address for item in found} == {"00000000:00:00.0"}


def test_a_device_in_mig_mode_without_partitions_cannot_be_given_out() -> None:
    nvml = ReplayedNvml(1, nvmlDeviceGetMigMode=(1, 1), nvmlDeviceGetMaxMigDeviceCount=7)
    nvml.answers["nvmlDeviceGetMigDeviceHandleByIndex"] = NVMLError("Not Found")
    (device,) = read(nvml)
    assert device.health is DeviceHealth.FAILED
    assert "partition" in device.health_reason


def test_devices_joined_by_links_are_one_island() -> None:
    def link(remote: int) -> dict[str, Any]:
        return {"state": lambda n: 1 if n == 0 else 0, "remote": f"00000000:{remote:02X}:00.0"}

    pairs = [link(1), link(0), link(3), link(2)]
    nvml = ReplayedNvml(
        4,
        nvmlDeviceGetNvLinkState=[item["state"] for item in pairs],
        nvmlDeviceGetNvLinkRemotePciInfo=[Struct(busId=item["remote"].encode()) for item in pairs],
    )
    assert [item.island for item in read(nvml)] == [
        "nvlink-0",
        "nvlink-0",
        "nvlink-2",
        "nvlink-2",
    ]


def test_devices_behind_a_switch_are_all_one_island() -> None:
    nvml = ReplayedNvml(
        3,
        nvmlDeviceGetNvLinkState=1,
        nvmlDeviceGetNvLinkRemotePciInfo=Struct(busId=b"00000000:C0:00.0"),
    )
    assert {item.island for item in read(nvml)} == {"nvlink-0"}


def test_a_node_without_a_library_or_devices_has_none() -> None:
    def missing() -> Any:
        raise ImportError

    assert NvidiaProbe(missing).devices(frozenset()) == ()
    assert read(ReplayedNvml(0)) == ()


class TestNvidiaProbe(ProbeContract):
    def make(self, folder: Path, **answers: Any) -> NvidiaProbe:
        busy = [[Struct(pid=7, usedGpuMemory=1 << 30)], []]
        nvml = ReplayedNvml(2, **{"nvmlDeviceGetComputeRunningProcesses": busy, **answers})
        return NvidiaProbe(lambda: nvml)

    def make_without(self, folder: Path) -> NvidiaProbe:
        return self.make(folder, nvmlInit=NVMLError("Driver Not Loaded"))

    def make_refusing(self, folder: Path) -> NvidiaProbe:
        named = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID")
        refused = dict.fromkeys(h100(2).keys() - {*named}, NVMLError("Not Supported"))
        return self.make(folder, **refused)

    def make_losing(self, folder: Path) -> NvidiaProbe:
        lost = NVMLErrorGpuIsLost("GPU is lost")
        return self.make(folder, nvmlDeviceGetMemoryInfo=[h100(1)["nvmlDeviceGetMemoryInfo"], lost])


class TestAmdProbe(ProbeContract):
    def make(self, folder: Path) -> AmdProbe:
        for card in range(2):
            sysfs(folder, card)
        return AmdProbe(folder)

    def make_without(self, folder: Path) -> AmdProbe:
        return AmdProbe(folder / "none")

    def make_refusing(self, folder: Path) -> AmdProbe:
        for device in (sysfs(folder, card) for card in range(2)):
            for name in ("mem_info_vram_total", "mem_info_vram_used", "gpu_busy_percent"):
                (device / name).unlink()
        return AmdProbe(folder)

    def make_losing(self, folder: Path) -> AmdProbe:
        probe = self.make(folder)
        (sysfs(folder, 1) / "enable").write_text("0\n")
        return probe


def sysfs(folder: Path, card: int) -> Path:
    """Write what the kernel shows of an AMD device."""
    device = folder / f"card{card}" / "device"
    device.mkdir(parents=True, exist_ok=True)
    fields = {
        "vendor": "0x1002",
        "unique_id": f"0x1a2b3c4d5e6f708{card}",
        "product_name": "AMD Instinct MI300X",
        "mem_info_vram_total": str(192 << 30),
        "mem_info_vram_used": str(1 << 30),
        "gpu_busy_percent": "25",
        "enable": "1",
    }
    for name, text in fields.items():
        (device / name).write_text(text + "\n")
    return device


def test_amd_devices_are_read_from_sysfs(tmp_path: Path) -> None:
    sysfs(tmp_path, 1)
    (tmp_path / "card1-DP-1" / "device").mkdir(parents=True)
    (found,) = AmdProbe(tmp_path).devices(frozenset())
    assert (found.id, found.kind) == ("GPU-1a2b3c4d5e6f7081", "AMD Instinct MI300X")
    assert (found.memory_mib, found.memory_used_mib, found.utilisation) == (192 << 10, 1024, 0.25)
