"""Several processes on one port: real ones, since what they share is the kernel's."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import httpx
import pytest

from llmgw.adminapi.feed_messages import RouterReport, encode_report
from llmgw.clock import SystemClock
from llmgw.config.addresses import Address
from llmgw.config.loading import load_server
from llmgw.domain.endpoints import RouterUsage
from llmgw.domain.ids import EndpointId, ModelName
from llmgw.domain.secret import Secret
from llmgw.domain.usage import UsageBatch, UsageRecord
from llmgw.errors import ConfigError
from llmgw.server.listeners import address_of, listen, shared
from llmgw.server.relay import Relay, RelayedRouter
from llmgw.testing.clock import FakeClock
from llmgw.testing.cluster import RunningServer, running_server
from llmgw.testing.engine_script import Hang, Script, ScriptedEngine

pytestmark = pytest.mark.anyio

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
ANSWER = {"object": "chat.completion", "choices": []}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again: the processes are real, and seen from outside."""
    with anyio.fail_after(15):
        while not await condition():  # noqa: ASYNC110 # there is no event to wait for out here
            await anyio.sleep(0.05)


def workers_of_this_process() -> set[int]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # it has ended while we looked
        if b"llmgw.server.worker" in words and int(parent) == os.getpid():
            found.add(int(folder.name))
    return found


async def ask(server: RunningServer) -> int:
    """Ask on a connection of its own, so that the kernel chooses a worker anew."""
    url = f"http://{server.serving.api}/v1/chat/completions"
    async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
        return (await client.post(url, json=CHAT)).status_code


@pytest.mark.timeout(90)  # each worker is a new Python that imports every plugin
async def test_workers_share_the_port_are_replaced_when_they_die_and_end_with_the_server(
    tmp_path: Path,
) -> None:
    async with ScriptedEngine(Script.plain(ANSWER)) as engine:
        endpoint = {"id": "e1", "url": engine.url, "models": ["m"], "health_path": None}
        async with running_server(tmp_path, endpoints=[endpoint], workers=2) as server:
            first = workers_of_this_process()
            assert len(first) == 2
            assert {await ask(server) for _ in range(8)} == {200}
            page = (await server.admin.get("/metrics")).text
            assert sum(
                float(line.rpartition(" ")[2])
                for line in page.splitlines()
                if line.startswith("llmgw_requests_total") and 'model="m"' in line
            ) == pytest.approx(8)

            os.kill(min(first), signal.SIGKILL)

            async def is_replaced() -> bool:
                now = workers_of_this_process()
                return len(now) == 2 and now != first

            await until(is_replaced)
            assert {await ask(server) for _ in range(8)} == {200}, "what queued is answered"
    assert workers_of_this_process() == set()


@pytest.mark.timeout(90)
async def test_workers_keep_the_limit_of_an_endpoint_together(tmp_path: Path) -> None:
    limit, least = 6, 1
    async with ScriptedEngine(Script.raw(Hang())) as engine:
        endpoint = {
            "id": "e1",
            "url": engine.url,
            "models": ["m"],
            "health_path": None,
            "max_inflight": limit,
        }

        async def are_all_slots_in_use() -> bool:
            return len(engine.requests) >= limit

        async with (
            running_server(tmp_path, endpoints=[endpoint], workers=2) as server,
            anyio.create_task_group() as clients,
        ):
            for _ in range(24):
                clients.start_soon(ask, server)
            await until(are_all_slots_in_use)
            await anyio.sleep(3)  # shares would have moved by now
            assert limit <= len(engine.requests) <= limit + least
            clients.cancel_scope.cancel()


def test_shared_sockets_have_one_port_and_a_taken_one_is_still_an_error() -> None:
    with shared("127.0.0.1:0", 3) as sockets:
        assert len({address_of(one).port for one in sockets}) == 1
    with listen(Address("127.0.0.1", 0)) as taken:
        busy = str(address_of(taken))
        with pytest.raises(ConfigError, match="already in use"), shared(busy, 2):
            pass


async def test_a_batch_of_usage_that_a_worker_repeats_is_counted_once() -> None:
    relay = Relay(FakeClock(), name="r")
    record = UsageRecord(
        at=1.0, key="k", model=ModelName("m"), endpoint=EndpointId("e"), status=200
    )
    batch = UsageBatch(id="b1", records=(record,))
    report = RouterReport(router="w0", applied=None, usage=RouterUsage(), batch=batch)
    for _ in range(2):
        await relay.feed.receive(encode_report(report))
    told = relay.ledger.batch()
    assert told is not None
    assert told.records == (record,)


@pytest.mark.timeout(90)
async def test_a_stand_alone_router_with_workers_relays_what_its_server_says(
    tmp_path: Path,
) -> None:
    async with ScriptedEngine(Script.plain(ANSWER)) as engine:
        endpoint = {"id": "e1", "url": engine.url, "models": ["m"], "health_path": None}
        async with running_server(tmp_path / "server", endpoints=[endpoint]) as server:
            flags = {
                "listen": "127.0.0.1:0",
                "admin_listen": "127.0.0.1:0",
                "state_dir": str(tmp_path / "router"),
                "workers": 2,
            }
            router = RelayedRouter(
                load_server(None, {}, flags, needs_work=False),
                servers=[f"http://{server.serving.admin}"],
                token=Secret(server.admin.headers["Authorization"].removeprefix("Bearer ")),
                clock=SystemClock(),
            )
            async with anyio.create_task_group() as tasks:
                serving = await tasks.start(router.run)
                assert len(workers_of_this_process()) == 2
                url = f"http://{serving.api}/v1/chat/completions"
                async with httpx.AsyncClient(trust_env=False) as client:
                    assert (await client.post(url, json=CHAT)).json() == ANSWER
                    own = (tmp_path / "router" / "admin.token").read_text().strip()
                    bearer = {"Authorization": f"Bearer {own}"}
                    page = f"http://{serving.admin}/metrics"
                    lines = (await client.get(page, headers=bearer)).text.splitlines()
                router.stop()
    assert "llmgw_feed_stale 0" in lines
    told = [line.partition(" ")[0] if line[0] != "#" else line for line in lines]
    assert len(told) == len(set(told)), "a series or its help stands twice"
    assert workers_of_this_process() == set()
