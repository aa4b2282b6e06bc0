"""Starting children from a process that speaks gRPC (C042)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from llmgw_agent.node.link import Abilities

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

STARTS = 500
START_LIMIT_S = 5.0
# Names what it inherited: open descriptors but for its own listing of them, and its signal mask.
CHILD = (
    "import os,sys\n"
    "fds=[(fd,os.readlink(f'/proc/self/fd/{fd}')) for fd in os.listdir('/proc/self/fd')"
    " if os.path.exists(f'/proc/self/fd/{fd}')]\n"
    "mask=[line for line in open('/proc/self/status') if line.startswith('SigBlk')][0].split()[1]\n"
    "sys.stdout.write(f'{mask} {sum(name.startswith(\"socket:\") for _,name in fds)}')\n"
)


class Chatter:
    """A log that never ends, so that the stream is busy all the time."""

    def sources(self) -> tuple[Any, ...]:
        return ()

    async def read(self, source: str, *, lines: int, follow: bool) -> Any:
        while True:
            yield "x" * 200
            await anyio.sleep(0.002)


def _start() -> str:
    """Start one child as the agent starts its shims, and return what it says of itself."""
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CHILD],
        start_new_session=True,
        close_fds=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        said, _ = child.communicate(timeout=START_LIMIT_S)
        assert child.returncode == 0
    assert time.monotonic() - started < START_LIMIT_S
    return said


async def test_500_starts_beside_a_busy_stream_hang_never_and_leak_nothing(
    workshop: Any, tmp_path: Path
) -> None:
    own_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    async with workshop.server("127.0.0.1:0").running() as server:
        agent = workshop.agent(
            server, token=workshop.trust.new_token(), abilities=Abilities(logs=Chatter())
        )
        async with agent.running(), anyio.create_task_group() as tasks:
            await server.reports.until(lambda: server.reports.registrations)
            tasks.start_soon(_follow, server)
            beats = len(server.reports.beats)
            began = time.monotonic()
            for _ in range(STARTS):
                said = await anyio.to_thread.run_sync(_start)
                assert said == f"{'0' * 16} 0"
            took_s = time.monotonic() - began
            assert server.reports.gone == []
            # Heartbeats kept their pace of ten a second, a loaded machine allowed for.
            assert len(server.reports.beats) - beats > took_s * 5
            tasks.cancel_scope.cancel()
    assert own_mask == set()


async def _follow(server: Any) -> None:
    node = server.reports.registrations[0].inventory.node
    async for _ in server.dispatcher.read_log(node, source="x", lines=1, follow=True):
        pass
