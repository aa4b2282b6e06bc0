"""Notices when the agent's event loop stands still: gRPC's own threads go on answering pings."""

from __future__ import annotations

import anyio
import anyio.abc

from llmgw.clock import Clock
from llmgw.logs import get_logger

log = get_logger(__name__)

_PERIOD_S = 0.1
_WARN_MS = 250.0


class LoopLag:
    """The worst stall of the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._worst_ms = 0.0

    def take_worst_ms(self) -> float:
        """Return the worst stall since the last call, and begin anew."""
        worst, self._worst_ms = self._worst_ms, 0.0
        return worst

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Measure until cancelled."""
        task_status.started()
        while True:
            before = self._clock.monotonic()
            await self._clock.sleep(_PERIOD_S)
            lag_ms = (self._clock.monotonic() - before - _PERIOD_S) * 1000
            self._worst_ms = max(self._worst_ms, lag_ms)
            if lag_ms >= _WARN_MS:
                log.warning("event loop stood still", lag_ms=round(lag_ms))
