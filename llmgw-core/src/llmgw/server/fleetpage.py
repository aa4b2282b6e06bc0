"""The fleet on the metrics page. Apart from `pages`: a router has no need of prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import anyio.to_thread
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from llmgw.control.fleetmetrics import FleetCollector
from llmgw.control.view import FleetView


class _Taken(Collector):
    """A reading that was taken before."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


async def fleet_page(view: FleetView) -> bytes:
    """Return the fleet in Prometheus' text format.

    Read here, where the fleet holds still; written on a thread, where it may take its time.
    """
    families = list(FleetCollector(view).collect())
    return await anyio.to_thread.run_sync(_written, families)


def _written(families: Sequence[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Taken(families))
    return generate_latest(registry)
