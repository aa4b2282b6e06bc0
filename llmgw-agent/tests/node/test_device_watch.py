"""Several vendors' probes at work, of which one hangs or breaks."""

from __future__ import annotations

import threading

import pytest

from llmgw.domain.ids import DeviceId
from llmgw.domain.nodes import Device, DeviceHealth
from llmgw_agent.node.hardware.watch import DeviceWatch


class Probe:
    """Answers, breaks or hangs as told."""

    def __init__(self, vendor: str) -> None:
        self.vendor = vendor
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False

    def devices(self, our_pids: frozenset[int]) -> tuple[Device, ...]:
        self.gate.wait(10)
        if self.broken:
            raise RuntimeError("a bug of the plugin")
        name = DeviceId(f"{self.vendor}-0")
        return (Device(id=name, index=0, kind="x", vendor=self.vendor, memory_mib=1),)


@pytest.mark.anyio
async def test_a_driver_that_hangs_delays_nobody_and_is_picked_up_when_it_answers() -> None:
    slow, quick = Probe("slow"), Probe("quick")
    watch = DeviceWatch({"slow": slow, "quick": quick}, our_pids=frozenset, limit_s=0.1)
    assert {item.health for item in await watch.read()} == {DeviceHealth.OK}
    slow.gate.clear()
    for _ in range(2):  # the second time it is not even asked
        health = {item.vendor: item.health for item in await watch.read()}
        assert health == {"slow": DeviceHealth.FAILED, "quick": DeviceHealth.OK}
    slow.gate.set()
    for _ in range(50):
        if {item.health for item in await watch.read()} == {DeviceHealth.OK}:
            return
    raise AssertionError("the driver answers again and nobody listens")


@pytest.mark.anyio
async def test_a_probe_that_breaks_takes_no_other_along() -> None:
    bad, good = Probe("bad"), Probe("good")
    watch = DeviceWatch({"bad": bad, "good": good}, our_pids=frozenset)
    await watch.read()
    bad.broken = True
    health = {item.vendor: item.health for item in await watch.read()}
    assert health == {"bad": DeviceHealth.FAILED, "good": DeviceHealth.OK}
