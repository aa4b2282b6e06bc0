"""Starts one engine under its shim. A shell."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from llmgw.contracts.engine import EngineAdapter, EngineHome
from llmgw.domain.replicas import Failure, FailureCause
from llmgw.domain.secret import Secret
from llmgw.errors import LlmgwError
from llmgw_agent.node import processes, shim
from llmgw_agent.node.assignments import Assigned
from llmgw_agent.node.commands import bind_problem
from llmgw_agent.node.durable import DiskFull
from llmgw_agent.node.host import Host, StepFailed
from llmgw_agent.node.incarnation import Incarnation
from llmgw_agent.node.launching import effective_spec, make_record
from llmgw_agent.node.shardfolder import LaunchRecord, ShardFolder, ShimState
from llmgw_agent.node.shards import Life

_SHIM = Path(shim.__file__)
_START_LIMIT_S = 15.0  # from the shim's start to its first word, which takes 50 ms
_POLL_S = 0.01


class Launcher:
    """Writes the launch record, starts the shim, and waits for its first word."""

    def __init__(self, *, host: Host, folder: ShardFolder) -> None:
        self._host = host
        self._folder = folder

    async def launch(
        self,
        into: Incarnation,
        life: Life,
        assigned: Assigned,
        *,
        adapter: EngineAdapter,
        home: EngineHome,
        weights: Path,
    ) -> None:
        """Return when the engine's main process runs, `into` filled.

        Raises StepFailed, or ShimAlive if an earlier start has come up meanwhile.
        """
        spec = effective_spec(life.spec, life.options)
        for port in spec.ports:
            if problem := bind_problem(self._host.address, port):
                raise step_failed(FailureCause.PORT_IN_USE, problem)
        devices = {device.id: device for device in await self._host.devices()}
        if lost := [item for item in spec.devices if item not in devices]:
            raise step_failed(FailureCause.DEVICE_LOST, f"no answer from {', '.join(lost)}")
        into.memory_before = {item: devices[item].memory_used_mib or 0 for item in spec.devices}
        try:
            record = make_record(
                spec,
                adapter=adapter,
                home=home,
                weights=weights,
                folder=self._folder,
                key=Secret(into.secret),
                address=self._host.address,
                guarded=self._host.guarded,
                device_indices=tuple(devices[item].index for item in spec.devices),
                cookie=into.cookie,
                lock_folder=self._host.lock_folder,
                inherited=self._host.environment,
            )
        except (LlmgwError, ValueError) as error:
            raise step_failed(FailureCause.BAD_OPTION, str(error)) from error
        into.record = replace(
            record,
            run=life.incarnation + 1,
            epoch=assigned.epoch,
            cgroup=self._cgroup(spec.id),
            options=life.options,
            restarts=life.restarts,
            failures=life.failures,
            failure=life.failure,
        )
        try:
            await anyio.to_thread.run_sync(self._folder.prepare, into.record)
            into.shim_child = await anyio.to_thread.run_sync(self._start_shim, into.record.token)
        except DiskFull as error:
            raise step_failed(FailureCause.DISK_FULL, str(error)) from error
        except OSError as error:
            raise step_failed(FailureCause.UNKNOWN, f"cannot start a process: {error}") from error
        into.state = await self._wait_started(into.record, into.shim_child)
        into.known = frozenset({into.state.main})
        into.log.begin(into.state.first_log)

    def _cgroup(self, shard: str) -> str | None:
        if self._host.cgroups is None:
            return None
        path = self._host.cgroups / f"shard-{shard}"
        try:
            path.mkdir(exist_ok=True)
        except OSError:
            return None  # the cookie finds the tree as well
        return str(path)

    def _start_shim(self, token: str) -> int:
        # vfork and exec, with no Python code between them: safe beside gRPC's threads (C042).
        with (self._folder.path / "shim.log").open("wb") as words:
            started = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SHIM), str(self._folder.path), token],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=words,
                start_new_session=True,
                close_fds=True,
                # A Python whose library lies in an odd place needs this to start at all.
                env={
                    name: value
                    for name, value in self._host.environment.items()
                    if name == "LD_LIBRARY_PATH"
                },
            )
        # It is meant to outlive this object, and us: `Popen` would warn of it for ever.
        started.returncode = 0
        return started.pid

    async def _wait_started(self, record: LaunchRecord, shim_pid: int) -> ShimState:
        deadline = self._host.clock.monotonic() + _START_LIMIT_S
        ended = False
        while True:
            state, end = self._folder.state(), self._folder.exit()
            if end is not None and end.run == record.run and end.refusal is not None:
                raise StepFailed(_refused(end.refusal, end.message, record))
            if state is not None and state.run == record.run:
                return state
            if ended:
                raise step_failed(FailureCause.SHIM_LOST, f"the shim ended: {self._words()}")
            # Looked at once more after its end: the last word may have come in between.
            ended = processes.reap(shim_pid)
            if self._host.clock.monotonic() > deadline:
                raise step_failed(
                    FailureCause.START_TIMEOUT, f"the shim said nothing for {_START_LIMIT_S:g} s"
                )
            await self._host.clock.sleep(_POLL_S)

    def _words(self) -> str:
        try:
            lines = (self._folder.path / "shim.log").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it gave no reason"


def step_failed(cause: FailureCause, message: str, *, hint: str = "") -> StepFailed:
    """Return the exception for a step that cannot be done."""
    return StepFailed(Failure(cause=cause, message=message, hint=hint))


def _refused(code: str, message: str, record: LaunchRecord) -> Failure:
    if code == shim.DEVICE_BUSY:
        return Failure(
            cause=FailureCause.DEVICE_BUSY,
            message=f"an engine of another agent on this machine holds a device ({message})",
        )
    return Failure(
        cause=FailureCause.ENGINE_MISSING,
        message=f"the engine's program cannot be run: {message}",
        command=record.argv,
    )
