"""The fleet on the metrics page: sums by node and model, and nothing that nobody knows."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from llmgw.control.fleetmetrics import FleetCollector, read_fleet
from llmgw.domain.loads import EngineLoad
from llmgw.domain.nodes import DeviceHealth
from llmgw.testing import values

pytestmark = pytest.mark.anyio


async def reading(site: Any) -> dict[tuple[str, ...], float]:
    """Value by name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in FleetCollector(await read_fleet(site.plane.view)).collect()
        for sample in family.samples
    }


async def page(site: Any) -> str:
    registry = CollectorRegistry()
    registry.register(FleetCollector(await read_fleet(site.plane.view)))
    return generate_latest(registry).decode()


async def test_devices_are_summed_by_node_and_a_reading_that_was_refused_is_absent(
    site: Any,
) -> None:
    known = values.device("n1", 0, memory_mib=8192, memory_used_mib=512, utilisation=0.5)
    broken = values.device(
        "n1", 1, memory_mib=1024, memory_used_mib=None, health=DeviceHealth.FAILED
    )
    silent = values.device("n2", 0, memory_mib=None, memory_used_mib=None)
    await site.serve(
        [values.model("m", values.profile(devices={"count": 1, "memory_gib": 1}))],
        values.inventory("n1", devices=(known, broken)),
    )
    site.fleet.join(values.inventory("n2", devices=(silent,)))
    seen = await reading(site)
    assert seen["llmgw_device_memory_bytes", "n1"] == 9 << 30
    assert seen["llmgw_device_memory_used_bytes", "n1"] == 512 << 20
    assert seen["llmgw_device_utilization_ratio", "n1"] == 0.5
    assert not [key for key in seen if "memory" in key[0] and key[1] == "n2"]
    uses = {use: seen["llmgw_devices", "n1", use] for use in ("free", "booked", "failed")}
    assert uses == {"free": 0, "booked": 1, "failed": 1}


async def test_what_engines_say_is_summed_by_model_and_silence_is_not_zero(site: Any) -> None:
    await site.serve(
        [values.model("m", replicas={"min": 2}), values.model("quiet")], values.inventory("n1")
    )
    (node,) = site.fleet.nodes.values()
    first, second = (shard for shard in node.shards if shard.startswith("m-"))
    site.fleet.beat(
        [
            (first, EngineLoad(running=2, waiting=1, kv_used=0.25)),
            (second, EngineLoad(running=3, waiting=None, kv_used=0.5)),
        ]
    )
    seen = await reading(site)
    assert seen["llmgw_engine_requests", "m", "running"] == 5
    assert seen["llmgw_engine_requests", "m", "waiting"] == 1
    assert seen["llmgw_engine_kv_cache_used_ratio", "m"] == 0.5
    assert not [key for key in seen if key[0].startswith("llmgw_engine") and "quiet" in key]
    assert seen["llmgw_replicas_min", "m"] == 2


async def test_every_state_has_a_series_from_the_first_scrape_on(site: Any) -> None:
    text = await page(site)
    assert 'llmgw_nodes{state="lost"} 0.0' in text
    assert "\nllmgw_control_leading " in text
    await site.serve(
        [values.model("m", values.profile(devices=1))], values.inventory("n1", devices=3)
    )
    text = await page(site)
    assert 'llmgw_devices{node="n1",use="booked"} 1.0' in text
    assert 'llmgw_devices{node="n1",use="free"} 2.0' in text
    assert 'llmgw_replicas{model="m",state="ready"} 1.0' in text
    assert 'llmgw_model_state{model="m",state="serving"} 1.0' in text
    assert "llmgw_control_leading 1.0" in text
