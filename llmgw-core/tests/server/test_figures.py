"""What one server measures, the next one knows."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from llmgw.config.server import ControlSettings
from llmgw.control.plane import ControlPlane
from llmgw.server.figures import FigureKeeper
from llmgw.store import open_store
from llmgw.testing.clock import FakeClock
from llmgw.testing.cluster import registry_of_fakes
from llmgw.testing.dispatch import MemoryDispatcher

pytestmark = pytest.mark.anyio


def plane(clock: FakeClock) -> ControlPlane:
    registry = registry_of_fakes()
    return ControlPlane(
        ControlSettings(),
        engines=registry.engines,
        policies=registry.policies,
        dispatcher=MemoryDispatcher(),
        clock=clock,
    )


async def test_measured_memory_is_known_to_the_next_server(tmp_path: Path) -> None:
    clock = FakeClock()
    store = await anyio.to_thread.run_sync(
        lambda: open_store(None, state_dir=tmp_path, clock=clock)
    )
    assert await anyio.to_thread.run_sync(store.leases.acquire, "this server")
    first, second = plane(clock), plane(clock)
    first.know_memory({"a-spec-on-a-kind": 12345.0})
    await FigureKeeper(store, first, clock).keep()
    await FigureKeeper(store, second, clock).recall()
    assert second.learned == {"a-spec-on-a-kind": 12345.0}
    store.close()
