"""A server's half of the agents' streams: hub and control plane, in a process of its own.

    python server_process.py ADDRESS HEARTBEAT_S

Prints the address when agents may connect. Its authority is the same in each run, so that agents
know it again. It leaves out the router and the admin API, which cost nothing until they are asked.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from llmgw.clock import SystemClock
from llmgw.config.server import ControlSettings
from llmgw.contracts.dispatch import DispatcherContext
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.plane import ControlPlane
from llmgw.logs import configure
from llmgw.server.memory import set_aside_what_stays
from llmgw.testing.trust import Authority, InMemoryTrust
from llmgw_agent.hub.dispatcher import HubDispatcher

SHARED_SCALAR = 4711


async def main(listen: str, heartbeat_s: float) -> None:
    clock = SystemClock()
    context = DispatcherContext(
        agent_listen=listen,
        state_dir=Path(),
        trust=InMemoryTrust(authority=Authority(scalar=SHARED_SCALAR)),
        clock=clock,
    )
    plane = ControlPlane(
        ControlSettings(),
        engines={},
        policies={"pack": Pack()},
        dispatcher=HubDispatcher(context, heartbeat_s=heartbeat_s),
        clock=clock,
    )
    set_aside_what_stays()
    async with anyio.create_task_group() as tasks:
        address = await tasks.start(plane.run)
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    configure(level="error")
    anyio.run(main, sys.argv[1], float(sys.argv[2]))
