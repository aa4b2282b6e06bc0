"""A whole agent as a process: killed, started again, told to stop; no server anywhere."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from llmgw.domain.ids import Epoch
from llmgw.domain.replicas import ShardState
from llmgw.errors import ConfigError
from llmgw_agent.node import processes
from llmgw_agent.node.assignments import Assigned, Assignments
from llmgw_agent.node.shardfolder import ShardFolder
from llmgw_agent.node.status import AgentStatus, read_status

PROGRAM = Path(__file__).with_name("agent_program.py")


class Machine:
    """A state folder, and agents on it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.agents: list[subprocess.Popen[str]] = []
        (state / "w.gguf").write_bytes(b"GGUF")

    def assign(self, *specs: Any) -> None:
        orders = Assignments(self.state / "assigned.json")

        async def put() -> None:
            async with orders.turn:
                for spec in specs:
                    weights = f"path:{self.state}/w.gguf"
                    await orders.put(Assigned(spec=replace(spec, weights=weights), epoch=Epoch(1)))

        with start_blocking_portal() as portal:
            portal.call(put)

    def start(self, *flags: str) -> "subprocess.Popen[str]":
        agent = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.state), *flags],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.agents.append(agent)
        return agent

    def status(self) -> AgentStatus | None:
        try:
            return read_status(self.state)
        except ConfigError:
            return None

    def wait(self, condition: Callable[[AgentStatus], Any], limit_s: float = 12) -> AgentStatus:
        """Wait until the status that the youngest agent wrote is as wanted."""
        deadline = time.monotonic() + limit_s
        while True:
            status = self.status()
            if status is not None and status.pid == self.agents[-1].pid and condition(status):
                return status
            assert time.monotonic() < deadline, status and [line.shard for line in status.shards]
            time.sleep(0.02)

    def engines(self) -> list[processes.Process]:
        uid = (self.state / "uid").read_text()
        return [
            entry.process
            for entry in processes.process_table().values()
            if entry.cookie and entry.cookie.startswith(uid)
        ]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for agent in made.agents:
        agent.kill()
        if agent.stderr is not None and not agent.stderr.closed:
            agent.communicate()
    if (tmp_path / "uid").exists():
        for process in made.engines():
            processes.send_signal(process, signal.SIGKILL)
    for path in (tmp_path / "shards").glob("*"):
        if (left := ShardFolder(path).state()) is not None:
            processes.send_signal(left.shim, signal.SIGKILL)


def all_ready(status: AgentStatus) -> bool:
    states = [line.shard.state for line in status.shards]
    return bool(states) and set(states) == {ShardState.READY}


def test_killing_the_agent_again_and_again_restarts_no_engine_and_loses_no_line(
    machine: Machine, spec: Any
) -> None:
    machine.assign(spec(say_every=0.01), spec("r2.0"))
    machine.start()
    first = machine.wait(all_ready)
    for _ in range(3):
        machine.agents[-1].kill()
        machine.agents[-1].wait()
        machine.start()
        again = machine.wait(all_ready)
        assert [line.shard for line in again.shards] == [line.shard for line in first.shards]
    log = b"".join(
        path.read_bytes() for path in sorted((machine.state / "shards/r1.0/log").iterdir())
    )
    numbers = [int(found) for found in re.findall(rb"line (\d+)\n", log)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 20


def test_a_stopped_agent_leaves_its_engines_and_says_so(machine: Machine, spec: Any) -> None:
    machine.assign(spec())
    agent = machine.start()
    machine.wait(all_ready)
    agent.terminate()
    assert agent.wait(5) == 0
    assert "engines run on" in agent.communicate()[1]
    assert len(machine.engines()) == 1
    status = machine.status()
    assert status is not None
    assert not status.running


def test_stop_engines_ends_everything_that_the_agent_started(machine: Machine, spec: Any) -> None:
    machine.assign(spec(children=2, ignore_term=True), spec("r2.0"))
    machine.start()
    machine.wait(all_ready)
    machine.agents[-1].kill()
    machine.agents[-1].wait()
    agent = machine.start("--stop-engines")  # also what an earlier agent has started
    machine.wait(all_ready)
    agent.terminate()
    assert agent.wait(10) == 0
    assert machine.engines() == []
    assert list((machine.state / "shards").iterdir()) == []


def test_a_second_agent_on_one_folder_is_refused_with_the_first_ones_pid(
    machine: Machine, spec: Any
) -> None:
    first = machine.start()
    machine.wait(lambda _: True)
    second = machine.start()
    assert second.wait(10) == 1
    message = second.communicate()[1]
    assert f"pid {first.pid}" in message
    assert "--state-dir" in message
    assert first.poll() is None


def test_engines_of_another_agent_on_the_machine_are_not_touched(
    machine: Machine, tmp_path_factory: pytest.TempPathFactory, spec: Any
) -> None:
    machine.assign(spec())
    machine.start()
    theirs = machine.wait(all_ready).shards[0].shard
    other = Machine(tmp_path_factory.mktemp("other"))
    other.assign(spec())  # the same shard id
    agent = other.start("--stop-engines")
    other.wait(all_ready)
    agent.terminate()
    agent.communicate()
    assert other.engines() == []
    assert theirs.pid is not None
    assert os.path.exists(f"/proc/{theirs.pid}")  # noqa: PTH110 -- not a file
    assert machine.wait(all_ready).shards[0].shard == theirs


def test_an_idle_agent_is_small(machine: Machine) -> None:
    agent = machine.start()
    machine.wait(lambda _: True)
    fields = Path(f"/proc/{agent.pid}/smaps_rollup").read_text()
    pss_kb = next(int(line.split()[1]) for line in fields.splitlines() if line.startswith("Pss:"))
    assert pss_kb <= 70 * 1024


def test_a_status_without_an_agent_ever_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="start one"):
        read_status(tmp_path)
