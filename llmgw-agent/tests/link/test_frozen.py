"""Peers that stand still with their sockets open (F5, C040, C043)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from llmgw_agent.node.link import ServerState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

HUB = Path(__file__).with_name("hub_process.py")
# Keepalive 10 s and 5 s for its answer, and what a busy machine adds.
NOTICED_BY_PINGS_S = 18.0


@asynccontextmanager
async def _process(*argv: str, env: dict[str, str]) -> AsyncIterator[anyio.abc.Process]:
    process = await anyio.open_process(argv, stderr=None, env={**os.environ, **env})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


@asynccontextmanager
async def _agent(server: Any, token: str, folder: Path) -> AsyncIterator[anyio.abc.Process]:
    argv = [sys.executable, "-m", "llmgw", "agent", "--server", server.address]
    argv += ["--node-id", "frozen", "--join", token, "--state-dir", str(folder / "state")]
    async with _process(*argv, env={"HOME": str(folder)}) as process:
        yield process


@pytest.mark.parametrize(
    ("heartbeat_s", "noticed_s"), [(1.0, 6.0), (60.0, NOTICED_BY_PINGS_S)], ids=["beats", "pings"]
)
async def test_a_frozen_agent_is_noticed_and_comes_back_by_itself(
    workshop: Any, tmp_path: Path, heartbeat_s: float, noticed_s: float
) -> None:
    async with workshop.server("127.0.0.1:0", heartbeat_s=heartbeat_s).running() as server:
        reports = server.reports
        async with _agent(server, workshop.trust.new_token(), tmp_path) as agent:
            await reports.until(lambda: reports.registrations, limit_s=30)
            agent.send_signal(signal.SIGSTOP)
            await reports.until(lambda: reports.gone, limit_s=noticed_s)
            agent.send_signal(signal.SIGCONT)
            await reports.until(lambda: len(reports.registrations) == 2, limit_s=5)
            assert len({item.session for item in reports.registrations}) == 2
            assert [session for _, session in reports.gone] == [reports.registrations[0].session]


async def test_a_short_standstill_ends_no_session(workshop: Any, tmp_path: Path) -> None:
    async with workshop.server("127.0.0.1:0", heartbeat_s=1.0).running() as server:
        reports = server.reports
        async with _agent(server, workshop.trust.new_token(), tmp_path) as agent:
            await reports.until(lambda: len(reports.beats) >= 2, limit_s=30)
            agent.send_signal(signal.SIGSTOP)
            await anyio.sleep(1.5)  # the fault itself: shorter than three heartbeats
            agent.send_signal(signal.SIGCONT)
            seen = len(reports.beats)
            await reports.until(lambda: len(reports.beats) >= seen + 3, limit_s=10)
            assert reports.gone == []


@pytest.mark.parametrize(
    ("heartbeat_s", "noticed_s"), [(1.0, 6.0), (60.0, NOTICED_BY_PINGS_S)], ids=["beats", "pings"]
)
async def test_a_frozen_server_is_noticed_and_found_again(
    workshop: Any, tmp_path: Path, heartbeat_s: float, noticed_s: float
) -> None:
    listen = f"unix:{tmp_path}/hub.sock"
    async with _process(sys.executable, str(HUB), listen, str(heartbeat_s), env={}) as hub:
        assert hub.stdout is not None
        with anyio.fail_after(30):
            assert (await hub.stdout.receive()).decode().strip() == listen
        agent = workshop.agent(listen)
        async with agent.running():
            await _until(agent, ServerState.CONNECTED, 10)
            hub.send_signal(signal.SIGSTOP)
            await _until(agent, ServerState.WAITING, noticed_s)
            hub.send_signal(signal.SIGCONT)
            await _until(agent, ServerState.CONNECTED, 20)


async def test_a_killed_server_is_found_again_when_it_is_started(
    workshop: Any, tmp_path: Path
) -> None:
    listen = f"unix:{tmp_path}/hub.sock"
    agent = workshop.agent(listen)
    async with agent.running():
        for _ in range(3):
            async with _process(sys.executable, str(HUB), listen, "1.0", env={}):
                await _until(agent, ServerState.CONNECTED, 30)
            await _until(agent, ServerState.WAITING, 5)


async def _until(agent: Any, state: ServerState, limit_s: float) -> None:
    with anyio.fail_after(limit_s):
        while agent.link.status()[0].state is not state:  # noqa: ASYNC110 # looked at
            await anyio.sleep(0.02)
