"""Frames that no agent of ours sends, and connections that do not last (F13, F22)."""

from __future__ import annotations

import resource
from random import Random
from typing import Any

import anyio
import anyio.abc
import pytest

from llmgw.domain.ids import SessionId
from llmgw_agent.node.link import ServerState
from llmgw_agent.wire.addresses import UnixAddress
from llmgw_agent.wire.codec import DownDecoder, encode_up
from llmgw_agent.wire.dialling import socket_channel
from llmgw_agent.wire.frames import Goodbye, Unsupported, Welcome
from llmgw_agent.wire.service import Stub, read_message

FRAMES = 10_000


@pytest.mark.timeout(120)
@pytest.mark.e2e
async def test_ten_thousand_malformed_frames_end_their_own_calls_only(workshop: Any) -> None:
    random = Random(22)
    async with workshop.server().running() as server, workshop.agent(server).running() as agent:
        await server.reports.until(lambda: server.reports.beats)
        victim = workshop.agent(server, node="gpu-02")
        good = encode_up(victim.outbox.registration(SessionId("life/1")))[0]
        address = UnixAddress(server.address.removeprefix("unix:"))
        memory_kb: list[int] = []
        async with socket_channel(address) as channel:
            stub = Stub(channel)
            for number in range(FRAMES):
                call = stub.session(None)
                await call.write(_broken(good, random))
                data = await read_message(call)
                assert data is not None
                assert isinstance(DownDecoder().feed(data), Goodbye | Unsupported | Welcome)
                call.cancel()
                if number in (FRAMES // 2, FRAMES - 1):
                    memory_kb.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        assert agent.inventory.node not in {node for node, _ in server.reports.gone}
        seen = len(server.reports.beats)
        await server.reports.until(lambda: len(server.reports.beats) > seen)
    assert memory_kb[1] <= memory_kb[0] * 1.05


def _broken(good: bytes, random: Random) -> bytes:
    """Return noise, or a good frame with a few bytes changed, cut or doubled."""
    kind = random.randrange(4)
    if kind == 0:
        return random.randbytes(random.randrange(200))
    data = bytearray(good)
    if kind == 1:
        return bytes(data[: random.randrange(len(data))])
    if kind == 2:
        return bytes(data + data[random.randrange(len(data)) :])
    for _ in range(random.randrange(1, 8)):
        data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data)


class Flapping:
    """A way to the server that is there and away in turns; away means that nothing passes."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: set[anyio.CancelScope] = set()
        self.port = 0
        self.is_up = True

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = anyio.abc.SocketAttribute.local_port
        self.port = listener.extra(port)  # noqa: S610 # anyio's, not a database's
        async with listener:
            task_status.started()
            await listener.serve(self._serve)

    def cut(self) -> None:
        self.is_up = False
        for scope in self._open:
            scope.cancel()

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        async with client:
            if not self.is_up:
                return
            with anyio.CancelScope() as scope:
                self._open.add(scope)
                async with (
                    await anyio.connect_tcp("127.0.0.1", self._target) as server,
                    anyio.create_task_group() as tasks,
                ):
                    for one, other in ((client, server), (server, client)):
                        tasks.start_soon(_pump, one, other, tasks.cancel_scope)
            self._open.discard(scope)


async def _pump(
    source: anyio.abc.ByteStream, sink: anyio.abc.ByteStream, scope: anyio.CancelScope
) -> None:
    try:
        async for data in source:
            await sink.send(data)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    scope.cancel()


@pytest.mark.timeout(60)
@pytest.mark.e2e
async def test_a_flapping_way_leaves_at_most_one_session_at_a_time(workshop: Any) -> None:
    async with (
        workshop.server("127.0.0.1:0").running() as server,
        anyio.create_task_group() as tasks,
    ):
        way = Flapping(int(server.address.rpartition(":")[2]))
        await tasks.start(lambda *, task_status: way.run(task_status=task_status))
        reports = server.reports
        agent = workshop.agent(f"127.0.0.1:{way.port}", token=workshop.trust.new_token())
        async with agent.running():
            for round_ in range(1, 4):
                way.is_up = True
                await reports.until(lambda: len(reports.registrations) >= round_)  # noqa: B023
                way.cut()
                await reports.until(lambda: len(reports.gone) >= round_)  # noqa: B023
            way.is_up = True
            with anyio.fail_after(30):
                while agent.link.status()[0].state is not ServerState.CONNECTED:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
        begun = [item.session for item in reports.registrations]
        ended = [session for _, session in reports.gone]
        # In turns: the next begins only after the one before has ended.
        assert begun[: len(ended)] == ended
        tasks.cancel_scope.cancel()
