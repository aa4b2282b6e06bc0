"""Looks at the data plane every few seconds, so that the overview can show its last minutes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from llmgw.admin.pulse import Pulse, Reading
from llmgw.clock import Clock
from llmgw.contracts.sinks import UsageSource
from llmgw.control.view import FleetView
from llmgw.router.metrics import Totals


class Sampler:
    """Feeds a `Pulse`, which may be read at any time."""

    def __init__(
        self,
        pulse: Pulse,
        *,
        totals: Callable[[], Awaitable[Totals]],
        usage: UsageSource,
        view: FleetView | None,
        interval_s: float,
        clock: Clock,
    ) -> None:
        """usage: what all routers know. view: None where no control plane runs."""
        self.pulse = pulse
        self._totals = totals
        self._usage = usage
        self._view = view
        self._interval_s = interval_s
        self._clock = clock

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.pulse.add(await self._reading())
            await self._clock.sleep(self._interval_s)

    async def _reading(self) -> Reading:
        usage = self._usage.usage()
        booked = 0
        if self._view is not None:
            booked = sum(
                len(spec.devices) for item in self._view.replicas() for _, spec in item.shards
            )
        return Reading(
            totals=await self._totals(),
            in_flight=sum(item.in_flight for item in usage.endpoints.values()),
            queued=sum(usage.queued.values()),
            devices_used=booked,
            at=self._clock.monotonic(),
        )
