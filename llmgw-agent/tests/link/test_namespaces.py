"""Machines of their own: two agents and a server in network namespaces (F11, F13, F28).

Packets vanish here as they do behind a firewall: no connection is ever refused or reset.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import anyio
import anyio.abc
import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None,
        reason="network namespaces need root and iproute2",
    ),
]

HUB = Path(__file__).with_name("hub_process.py")
NODES = {"a": "10.99.1.2", "b": "10.99.2.2"}
SERVER = {"a": "10.99.1.1", "b": "10.99.2.1"}  # as each node reaches it
NOTICED_S = 18.0  # keepalive 10 s and 5 s for its answer, and what a busy machine adds
BACK_S = 35.0


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)


class Machines:
    """One namespace per machine, each node joined to the server by a wire of its own."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._made: list[str] = []

    def name(self, machine: str) -> str:
        return f"{self._prefix}-{machine}"

    def make(self) -> None:
        server = self._namespace("server")
        _ip("-n", server, "link", "set", "lo", "up")
        for node, address in NODES.items():
            space = self._namespace(node)
            wire = f"to-{node}"
            peer = ("type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", server, "link", "add", wire, *peer)
            for where, device, own in ((server, wire, SERVER[node]), (space, "eth0", address)):
                _ip("-n", where, "address", "add", f"{own}/24", "dev", device)
                _ip("-n", where, "link", "set", device, "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def cut(self, source: str, destination: str) -> None:
        """Let packets from one machine to another vanish; the other way stays open."""
        _ip("-n", self.name(source), "route", "add", "blackhole", f"{destination}/32")

    def heal(self, source: str, destination: str) -> None:
        _ip("-n", self.name(source), "route", "del", "blackhole", f"{destination}/32")

    def remove(self) -> None:
        for space in self._made:
            _ip("netns", "del", space)

    def _namespace(self, machine: str) -> str:
        space = self.name(machine)
        _ip("netns", "add", space)
        self._made.append(space)
        return space


class Process:
    """A program on one machine whose lines can be waited for."""

    def __init__(self, space: str, argv: list[str], home: Path) -> None:
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", space, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HOME": str(home), "GRPC_VERBOSITY": "NONE"},
        )
        self._lines: list[str] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    async def hear(self, start: str, limit_s: float) -> str:
        """Wait for the next line with this start and return it; lines before it are taken."""
        with anyio.fail_after(limit_s):
            while True:
                while self._lines:
                    line = self._lines.pop(0)
                    if line.startswith(start):
                        return line
                await anyio.sleep(0.02)

    def silent_about(self, start: str) -> bool:
        return not any(line.startswith(start) for line in self._lines)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)
        self._reader.join(timeout=10)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.strip())


@pytest.fixture
def machines() -> Iterator[Machines]:
    made = Machines(f"lg{os.getpid()}")
    try:
        made.make()
        yield made
    finally:
        made.remove()


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    running: list[Process] = []
    yield running
    for process in reversed(running):
        process.end()


async def test_two_nodes_join_are_cut_off_come_back_and_are_revoked(
    machines: Machines, processes: list[Process], tmp_path: Path
) -> None:
    hub = Process(machines.name("server"), [sys.executable, str(HUB), "0.0.0.0:0", "2"], tmp_path)
    processes.append(hub)
    port = (await hub.hear("0.0.0.0:", 30)).rpartition(":")[2]
    for node in NODES:
        hub.say("token")
        token = (await hub.hear("token ", 10)).split()[1]
        argv = [sys.executable, "-m", "llmgw", "agent", "--server", f"{SERVER[node]}:{port}"]
        argv += ["--node-id", node, "--join", token, "--state-dir", str(tmp_path / node)]
        processes.append(Process(machines.name(node), argv, tmp_path))
        await hub.hear(f"registered {node}", 30)

    # Both ways, then one way only: each is noticed, the other node is not touched.
    up, down = ("a", SERVER["a"]), ("server", NODES["a"])
    for cuts in ((up, down), (down,), (up,)):
        for source, destination in cuts:
            machines.cut(source, destination)
        await hub.hear("gone a", NOTICED_S)
        assert hub.silent_about("gone b")
        for source, destination in cuts:
            machines.heal(source, destination)
        await hub.hear("registered a", BACK_S)

    hub.say("rotate")
    hub.say("revoke b")
    await hub.hear("gone b", 10)
    await anyio.sleep(5)  # b dials again meanwhile, and is refused
    assert hub.silent_about("registered b")
    assert hub.silent_about("gone a")
