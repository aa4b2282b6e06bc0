"""The fleet in numbers."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from llmgw.control.fleetmetrics import FleetCollector
from llmgw.testing import values

pytestmark = pytest.mark.anyio


async def test_every_state_has_a_series_from_the_first_scrape_on(site: Any) -> None:
    registry = CollectorRegistry()
    registry.register(FleetCollector(site.plane.view))
    text = generate_latest(registry).decode()
    assert 'llmgw_nodes{state="lost"} 0.0' in text
    assert "llmgw_control_leading 0.0" in text
    await site.serve(
        [values.model("m", values.profile(devices=1))], values.inventory("n1", devices=3)
    )
    text = generate_latest(registry).decode()
    assert 'llmgw_devices{node="n1",use="booked"} 1.0' in text
    assert 'llmgw_devices{node="n1",use="free"} 2.0' in text
    assert 'llmgw_replicas{model="m",state="ready"} 1.0' in text
    assert 'llmgw_model_state{model="m",state="serving"} 1.0' in text
    assert "llmgw_control_leading 1.0" in text
