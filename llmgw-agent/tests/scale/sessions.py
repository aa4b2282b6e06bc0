"""A thousand agents on one server, and what happens when it is killed (F31).

    python llmgw-agent/tests/scale/sessions.py [--agents 1000] [--steady 30]

Real halves over loopback with mutual TLS: hub and control plane in a process of their own, all
agents, of eight devices each, in this one. Prints the figures and ends with 1 if a bar is missed:
all up within 35 s of a restart, heartbeat round trip p99 at most 1 s, and the server at most a
quarter of a core and 300 MB while nothing happens but heartbeats.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import anyio
import anyio.abc

from llmgw.clock import SystemClock
from llmgw.domain.commands import Command
from llmgw.domain.ids import Epoch, NodeId, SessionId
from llmgw.domain.nodes import NodeInventory
from llmgw.domain.reports import Heartbeat, Rejection
from llmgw.logs import configure
from llmgw.testing import values
from llmgw.testing.trust import Authority, InMemoryTrust
from llmgw_agent.node.identity import KeptIdentity, NodeCredentials, TokenSource
from llmgw_agent.node.link import Link, ServerState
from llmgw_agent.node.minting import Mint
from llmgw_agent.node.minting.work import answer, key_pem, new_key
from llmgw_agent.node.outbox import Allegiance, Outbox
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.addresses import TcpAddress
from llmgw_agent.wire.codec import DownDecoder, encode_up
from llmgw_agent.wire.dialling import secure_channel
from llmgw_agent.wire.frames import HeartbeatReply
from llmgw_agent.wire.quiet import quiet_grpc
from llmgw_agent.wire.service import Stub, read_message
from llmgw_agent.wire.versions import own_version

SERVER = Path(__file__).with_name("server_process.py")
SHARED_SCALAR = 4711  # as in the server's process
UP_LIMIT_S = 35.0
BEAT_LIMIT_S = 1.0
STEADY_CORES_LIMIT = 0.25
RETURNING_CORES_LIMIT = 1.0
MEMORY_LIMIT_MB = 300.0


class Deaf:
    """Commands and membership of agents that are only counted."""

    async def apply(self, command: Command) -> Rejection | None:
        return None

    def foreign_cluster(self, cluster_id: str) -> str | None:
        return None

    async def join(self, cluster_id: str) -> None: ...


@dataclass
class Fleet:
    """Every agent, and a probe that measures heartbeats as another agent would see them."""

    server: TcpAddress
    folder: Path
    trust: InMemoryTrust = field(
        default_factory=lambda: InMemoryTrust(authority=Authority(scalar=SHARED_SCALAR))
    )
    links: list[Link] = field(default_factory=list)
    trips_s: list[float] = field(default_factory=list)

    def credentials(self, node: NodeId) -> NodeCredentials:
        kept = KeptIdentity(self.folder / node / "identity.json", Mint(answer))
        key = new_key()
        kept.take(
            key_pem(key).decode(),
            pb.CertificateGrant(
                certificate_chain=self.trust.node_certificate(node, key.public_key()),
                ca_bundle=self.trust.authorities[0].pem,
                cluster_id=self.trust.cluster_id,
            ),
        )
        return NodeCredentials(node=node, kept=kept, tokens=TokenSource(), clock=SystemClock())

    def add(self, number: int) -> None:
        node = NodeId(f"node-{number:04d}")
        outbox = _outbox(node)
        deaf = Deaf()
        self.links.append(
            Link(
                servers=(self.server,),
                credentials=self.credentials(node),
                outbox=outbox,
                commands=deaf,
                membership=deaf,
                clock=SystemClock(),
                random=Random(number),
            )
        )

    @property
    def up(self) -> int:
        return sum(link.status()[0].state is ServerState.CONNECTED for link in self.links)

    async def until_all_up(self, limit_s: float) -> float:
        """Return how long it took."""
        started = time.monotonic()
        with anyio.move_on_after(limit_s):
            while self.up < len(self.links):  # noqa: ASYNC110 # looked at, not told
                await anyio.sleep(0.1)
        return time.monotonic() - started

    async def probe(self, seconds: float) -> None:
        """Send heartbeats ten times a second on one session and time the replies."""
        node = NodeId("probe")
        credentials = await self.credentials(node).channel_credentials(self.server)
        session = SessionId("probe/1")
        async with secure_channel(self.server, credentials) as channel:
            call = Stub(channel).session(None)
            await call.write(encode_up(_outbox(node).registration(session))[0])
            decoder = DownDecoder()
            await read_message(call)
            for sequence in range(1, int(seconds * 10)):
                sent = time.monotonic()
                await call.write(encode_up(Heartbeat(session=session, sequence=sequence))[0])
                while (data := await read_message(call)) is not None:
                    frame = decoder.feed(data)
                    if isinstance(frame, HeartbeatReply) and frame.sequence == sequence:
                        break
                self.trips_s.append(time.monotonic() - sent)
                await anyio.sleep(0.1)
            call.cancel()


def _outbox(node: NodeId) -> Outbox:
    inventory = NodeInventory(
        node=node,
        agent_uid=node,
        boot_id="boot",
        machine_id=node,
        agent_version=own_version(),
        hostname=node,
        data_address="127.0.0.1",
        ram_mib=1024 * 1024,
        devices=tuple(values.device(node, index) for index in range(8)),
    )
    moments = itertools.count()

    def look() -> NodeInventory:
        """Return the node as it is now: no two readings of a working machine are alike."""
        moment = next(moments)
        devices = (replace(item, memory_used_mib=moment) for item in inventory.devices)
        return replace(inventory, ram_available_mib=512 * 1024 - moment, devices=tuple(devices))

    return Outbox(
        inventory=look,
        allegiance=lambda: Allegiance(epoch=Epoch(0), cluster_id=None),
    )


@asynccontextmanager
async def serve(address: TcpAddress) -> AsyncIterator[anyio.abc.Process]:
    process = await anyio.open_process(
        [sys.executable, str(SERVER), str(address), "5"], stdout=-1, stderr=None
    )
    try:
        assert process.stdout is not None
        await process.stdout.receive()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_drain, process.stdout)
            yield process
            tasks.cancel_scope.cancel()
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


async def _drain(stream: anyio.abc.ByteReceiveStream) -> None:
    async for _ in stream:
        pass


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


@contextmanager
def timed(process: anyio.abc.Process) -> Iterator[list[float]]:
    """Yield a list that ends up with the cores which the process used inside the block."""
    cores: list[float] = []
    before, started = cpu_s(process.pid), time.monotonic()
    yield cores
    cores.append((cpu_s(process.pid) - before) / (time.monotonic() - started))


async def measure(agents: int, steady_s: float) -> list[tuple[str, float, float]]:
    """Return (what, figure, bar)."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = TcpAddress("127.0.0.1", probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(address, Path(folder))
        for number in range(agents):
            fleet.add(number)
        async with anyio.create_task_group() as tasks:
            async with serve(address) as process:
                for link in fleet.links:
                    tasks.start_soon(link.run)
                first_s = await fleet.until_all_up(120)
                with timed(process) as steady:
                    await fleet.probe(steady_s)
                memory_mb = pss_mb(process.pid)
            async with serve(address) as process:
                with timed(process) as returning:
                    again_s = await fleet.until_all_up(120)
                up = fleet.up
            tasks.cancel_scope.cancel()
    trips = sorted(fleet.trips_s)
    return [
        ("first registration of all, s", first_s, UP_LIMIT_S),
        ("all back after a restart, s", again_s, UP_LIMIT_S),
        ("agents that are not back", agents - up, 0),
        ("heartbeat round trip p99, s", trips[int(len(trips) * 0.99)], BEAT_LIMIT_S),
        ("server's cores while steady", steady[0], STEADY_CORES_LIMIT),
        ("server's cores while all return", returning[0], RETURNING_CORES_LIMIT),
        ("server's memory, MB", memory_mb, MEMORY_LIMIT_MB),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--steady", type=float, default=30.0)
    options = parser.parse_args()
    quiet_grpc()
    configure(level="error")
    figures = anyio.run(measure, options.agents, options.steady)
    for what, figure, bar in figures:
        sys.stdout.write(
            f"{what:34} {figure:9.3f}  bar {bar:g}  {'ok' if figure <= bar else 'MISSED'}\n"
        )
    return int(any(figure > bar for _, figure, bar in figures))


if __name__ == "__main__":
    sys.exit(main())
