"""Faults that others met with engines, tried on real processes."""

import fcntl
import http.server
import os
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmgw.domain.ids import DeviceId
from llmgw.domain.nodes import Device, DeviceProcess
from llmgw.domain.replicas import FailureCause, ShardState
from llmgw_agent.node import processes
from llmgw_agent.node.shards import Life, Phase

# ruff: noqa: ASYNC110 -- the process table wakes nobody

pytestmark = pytest.mark.anyio


class Impostor(http.server.BaseHTTPRequestHandler):
    """Says 200 to everything, and lists another model."""

    def do_GET(self) -> None:
        body = b'{"data": [{"id": "somebody-else"}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 -- the library's own name

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002
        pass


async def test_somebody_else_on_the_port_is_never_taken_for_the_engine(
    node: Any, spec: Any
) -> None:
    """C035: the port is taken between the order and the engine's bind."""
    wanted = spec(listen_after=1.0)
    async with node.running():
        await node.start(wanted)
        await node.wait_state("r1.0", ShardState.STARTING)
        while not node.engine_processes("r1.0"):
            await anyio.sleep(0.01)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", wanted.ports[0]), Impostor)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            report = await node.wait_state("r1.0", ShardState.BACKOFF)
        finally:
            await anyio.to_thread.run_sync(server.shutdown)
            thread.join()
            server.server_close()
        assert report.shard.failure.cause is FailureCause.WRONG_MODEL
        assert str(wanted.ports[0]) in report.shard.failure.message
        await node.wait_state("r1.0", ShardState.READY)  # once the port is free


async def test_an_engine_that_serves_another_model_is_not_ready(node: Any, spec: Any) -> None:
    """C035: our own process, the wrong name."""
    async with node.running():
        await node.start(spec())
        report = await node.wait_state("r1.0", ShardState.READY)
        record = node.supervisor._hands["r1.0"].incarnation.record
        node.supervisor._hands["r1.0"].incarnation.record = replace(
            record, expect_models=("acme/other",)
        )
        life_unproven = replace(_life(report), ready_at=None)
        looked = await node.supervisor._hands["r1.0"].look(life_unproven)
    assert "acme/other" in looked.wrong


def _life(report: Any) -> Any:
    return Life(spec=report.spec, phase=Phase.SERVING)


async def test_health_without_an_answer_to_a_request_is_not_ready(node: Any, spec: Any) -> None:
    """C036: the web part says 200, the model answers 500."""
    async with node.running():
        await node.start(spec(fail_completions=500))
        report = await node.wait_state("r1.0", ShardState.BACKOFF)
    assert report.shard.failure.cause is FailureCause.ENGINE_INTERNAL
    assert "500" in report.shard.failure.message


async def test_an_engine_that_ignores_the_signal_is_killed_after_its_grace(
    node: Any, spec: Any
) -> None:
    """C031: SIGTERM is only a wish."""
    async with node.running():
        await node.start(spec(ignore_term=True))
        await node.wait_state("r1.0", ShardState.READY)
        begin = anyio.current_time()
        await node.stop("r1.0", grace_s=0.5)
        while not node.supervisor.is_idle():
            await anyio.sleep(0.02)
        assert 0.5 <= anyio.current_time() - begin < 5
    assert node.engine_processes() == set()


async def test_helpers_that_outlive_the_engine_are_gone_before_it_starts_again(
    node: Any, spec: Any
) -> None:
    """C030: the parent is killed by somebody, the children hold the device."""
    async with node.running():
        await node.start(spec(children=2, ignore_term=True))
        report = await node.wait_state("r1.0", ShardState.READY)
        left = node.engine_processes("r1.0")
        os.kill(report.shard.pid, signal.SIGKILL)
        await node.wait_state("r1.0", ShardState.BACKOFF)
        assert not left & {entry.process for entry in processes.process_table().values()}


async def test_a_device_is_free_only_when_the_driver_says_so(node: Any, spec: Any) -> None:
    device = Device(id=DeviceId("GPU-1"), index=0, kind="x", vendor="nvidia", memory_mib=100)
    node.devices = (device,)
    async with node.running():
        await node.start(replace(spec(), devices=(device.id,)))
        report = await node.wait_state("r1.0", ShardState.READY)
        holder = DeviceProcess(pid=report.shard.pid, memory_mib=90, ours=True)
        node.devices = (replace(device, processes=(holder,)),)
        await node.stop("r1.0")
        while processes.find(report.shard.pid) is not None:
            await anyio.sleep(0.02)
        await anyio.sleep(0.3)
        assert node.report("r1.0").shard.state is ShardState.STOPPING
        node.devices = (device,)
        while not node.supervisor.is_idle():
            await anyio.sleep(0.02)


async def test_a_device_that_another_agents_engine_holds_is_named(node: Any, spec: Any) -> None:
    device = Device(id=DeviceId("GPU-1"), index=0, kind="x", vendor="nvidia", memory_mib=100)
    node.devices = (device,)
    with (node.state / "locks" / "GPU-1.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        async with node.running():
            await node.start(replace(spec(), devices=(device.id,)))
            report = await node.wait_state("r1.0", ShardState.BACKOFF)
    assert report.shard.failure.cause is FailureCause.DEVICE_BUSY
    assert "GPU-1" in report.shard.failure.message


async def test_children_inherit_no_socket_of_the_agent(node: Any, spec: Any) -> None:
    """C042: a listening socket that an engine inherited would keep the agent's port taken."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        os.set_inheritable(own.fileno(), True)
        inode = f"socket:[{os.fstat(own.fileno()).st_ino}]"
        async with node.running():
            await node.start(spec())
            await node.wait_state("r1.0", ShardState.READY)
            shim = node.supervisor._hands["r1.0"].incarnation.state.shim
            pids = {process.pid for process in node.engine_processes()} | {shim.pid}
            for pid in pids:
                held = _descriptors(pid)
                assert inode not in held


def _descriptors(pid: int) -> set[str]:
    return {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}


async def test_ten_starts_and_stops_all_come_to_their_end(node: Any, spec: Any) -> None:
    """C042, in small: none hangs, and nothing is left."""
    async with node.running():
        for number in range(5):
            async with anyio.create_task_group() as group:
                for place in range(2):
                    group.start_soon(_start_and_stop, node, spec(f"r{number}-{place}.0"))
    assert node.engine_processes() == set()
    assert node.assignments.all() == {}


async def _start_and_stop(node: Any, wanted: Any) -> None:
    await node.start(wanted)
    await node.wait_state(wanted.id, ShardState.READY)
    await node.stop(wanted.id)
    while node.assignments.get(wanted.id) is not None:
        await anyio.sleep(0.01)


async def test_a_reboot_starts_everything_afresh_and_signals_nobody(node: Any, spec: Any) -> None:
    """F20: another boot id, and the old pid belongs to somebody else."""
    async with node.running():
        await node.start(spec())
        report = await node.wait_state("r1.0", ShardState.READY)
    folder = node.state / "shards" / "r1.0"
    main = processes.find(report.shard.pid)
    assert main is not None
    # What the disk says after a reboot; the process stands for an innocent one with that pid.
    innocent = await anyio.open_process(["sleep", "30"])
    text = (folder / "state.json").read_text()
    text = text.replace(processes.boot_id(), "an-older-boot").replace(
        f'"pid": {report.shard.pid}', f'"pid": {innocent.pid}'
    )
    processes.send_signal(main, signal.SIGKILL)
    while node.engine_processes():
        await anyio.sleep(0.01)
    await anyio.sleep(0.2)  # the shim writes its own end first
    (folder / "exit.json").unlink()
    (folder / "state.json").write_text(text)
    async with node.running():
        again = await node.wait_state("r1.0", ShardState.READY)
    assert innocent.returncode is None
    innocent.kill()
    await innocent.aclose()
    assert (again.shard.restarts, again.shard.failure) == (0, None)


async def test_a_shard_whose_order_was_lost_is_taken_over_from_its_folder(
    node: Any, spec: Any
) -> None:
    async with node.running():
        await node.start(spec())
        before = await node.wait_state("r1.0", ShardState.READY)
    (node.state / "assigned.json").unlink()
    async with node.running():
        after = await node.wait_state("r1.0", ShardState.READY)
    assert (after.shard.pid, after.epoch) == (before.shard.pid, before.epoch)


async def test_a_full_disk_leaves_what_runs_alone_and_heals_by_itself(node: Any, spec: Any) -> None:
    """F18: the state folder takes no more; a link to /dev/full stands in for each new file."""
    async with node.running():
        await node.start(spec(say_every=0.01))
        before = await node.wait_state("r1.0", ShardState.READY)
        full = node.state / ".assigned.json.new"
        full.symlink_to("/dev/full")
        assert (await node.start(spec("r2.0"))).code == "disk_full"
        assert node.report("r1.0").shard.pid == before.shard.pid
        assert await node.start(spec("r2.0")) is None  # there is room again
        await node.wait_state("r2.0", ShardState.READY)
        assert node.report("r1.0").shard == before.shard


async def test_another_shards_order_interrupts_nothing(node: Any, spec: Any) -> None:
    async with node.running():
        await node.start(spec(token_delay=0.6, tokens=1))
        await node.wait_state("r1.0", ShardState.STARTING)
        for number in range(2, 7):
            await anyio.sleep(0.15)
            await node.stop(f"r{number}.0", epoch=number)  # of nobody, but a change of the set
        report = await node.wait_state("r1.0", ShardState.READY, limit_s=3)
    assert report.shard.incarnation == 1
