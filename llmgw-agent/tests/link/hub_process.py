"""A hub in a process of its own, for tests that stop, kill or cut it off.

    python hub_process.py ADDRESS HEARTBEAT_S

Prints the address when agents may connect, then a line per registration and per lost session. Its
authority is the same in each run, so that agents know it again. Reads orders from stdin:
`token` (prints a join token), `revoke NODE`, `rotate`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import anyio.to_thread

from llmgw.clock import SystemClock
from llmgw.contracts.dispatch import DispatcherContext
from llmgw.domain.ids import NodeId, SessionId
from llmgw.domain.reports import Heartbeat, Registration, Rejection, ShardReport
from llmgw.testing.trust import Authority, InMemoryTrust
from llmgw_agent.hub.dispatcher import HubDispatcher

SHARED_SCALAR = 4711


class Printer:
    """A ReportSink that prints registrations."""

    def registered(self, registration: Registration) -> None:
        say(f"registered {registration.inventory.node}")

    def heartbeat(self, node: NodeId, beat: Heartbeat) -> None: ...

    def shard_reported(self, node: NodeId, session: SessionId, report: ShardReport) -> None: ...

    def rejected(self, rejection: Rejection) -> None: ...

    def disconnected(self, node: NodeId, session: SessionId) -> None:
        say(f"gone {node}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def obey(trust: InMemoryTrust) -> None:
    while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        match line.split():
            case ["token"]:
                say(f"token {trust.new_token()}")
            case ["revoke", node]:
                trust.revoke(NodeId(node), "ordered")
            case ["rotate"]:
                trust.rotate_server_certificate()


async def main(listen: str, heartbeat_s: float) -> None:
    trust = InMemoryTrust(authority=Authority(scalar=SHARED_SCALAR))
    context = DispatcherContext(
        agent_listen=listen, state_dir=Path(), trust=trust, clock=SystemClock()
    )
    dispatcher = HubDispatcher(context, heartbeat_s=heartbeat_s)
    async with anyio.create_task_group() as tasks:
        say(
            await tasks.start(
                lambda *, task_status: dispatcher.run(Printer(), task_status=task_status)
            )
        )
        await obey(trust)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], float(sys.argv[2]))
