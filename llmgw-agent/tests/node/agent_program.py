"""An agent as a process of its own, with the fake engine: for tests that kill it.

python agent_program.py STATE_DIR [--stop-engines]
"""

import sys
from pathlib import Path

import anyio

from llmgw.clock import SystemClock
from llmgw.contracts.engine import EngineAdapter
from llmgw.contracts.hardware import HardwareProbe
from llmgw.contracts.weights import WeightSource
from llmgw.errors import ConfigError
from llmgw.logs import configure
from llmgw.testing.fake_adapter import FakeEngineAdapter
from llmgw_agent.node.app import serve, stop_on_signals
from llmgw_agent.node.weights.local import LocalSource
from llmgw_agent.settings import AgentSettings


class FakePlugins:
    """The fake engine, weights by path, no devices."""

    def __init__(self) -> None:
        self.engines: dict[str, EngineAdapter] = {"fake": FakeEngineAdapter()}
        self.weight_sources: dict[str, WeightSource] = {"path": LocalSource()}
        self.probes: dict[str, HardwareProbe] = {}


async def main(state_dir: Path, stop_engines: bool) -> None:
    settings = AgentSettings(
        node_id="n1",
        weights_roots=(state_dir,),
        stop_engines=stop_engines,
        lock_folder=state_dir / "locks",
    )
    async with stop_on_signals() as stop:
        await serve(
            settings, state_dir=state_dir, registry=FakePlugins(), clock=SystemClock(), stop=stop
        )


if __name__ == "__main__":
    configure()
    try:
        anyio.run(main, Path(sys.argv[1]), "--stop-engines" in sys.argv)
    except* ConfigError as group:
        sys.exit("\n".join(str(error) for error in group.exceptions))
