"""The fleet on the metrics page. Apart from `pages`: a router has no need of prometheus-client."""

from __future__ import annotations

import anyio.to_thread
from prometheus_client import CollectorRegistry, generate_latest

from llmgw.control.fleetmetrics import FleetCollector, FleetReading, read_fleet
from llmgw.control.view import FleetView


async def fleet_page(view: FleetView) -> bytes:
    """Return the fleet in Prometheus' text format.

    Read here, where the fleet holds still; written on a thread, where it may take its time.
    """
    return await anyio.to_thread.run_sync(_written, await read_fleet(view))


def _written(reading: FleetReading) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FleetCollector(reading))
    return generate_latest(registry)
