"""Several router processes on one port, fed and watched by their parent.

Workers are new programs, never forks: gRPC has threads. Each has a listening socket of its
own on the shared port; the parent keeps all of them open, so that connections which wait in the
queue of a worker that died are taken by the next one instead of being reset.

What holds for all of them is shared out by the parent, as the feed does among stand-alone
routers: `router.feed.desk`.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
import httpx
import msgspec
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.config.addresses import Address
from llmgw.config.server import ServerSettings
from llmgw.domain.secret import Secret
from llmgw.errors import PermanentError
from llmgw.logs import get_logger
from llmgw.router.feed import FeedSource
from llmgw.server.listeners import listen_unix
from llmgw.server.pages import summed_pages
from llmgw.server.serving import HttpListener
from llmgw.server.web import feed_app
from llmgw.server.worker import READY, WorkerOrder

log = get_logger(__name__)

_START_LIMIT_S = 30.0
_RESTART_BASE_S = 0.5
_RESTART_CAP_S = 30.0
_GOOD_AFTER_S = 60.0
_KILL_AFTER_S = 2.0


class Workers:
    """Starts, restarts and ends workers. `run` serves until `stop`."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        *,
        feed: FeedSource,
        token: Secret,
        flags: Mapping[str, object],
        state_dir: Path,
        drain_limit_s: float,
        clock: Clock,
    ) -> None:
        """sockets: one per worker, listening. feed: what they serve; `token` opens it.

        flags: settings of the workers. state_dir: a folder of each lies below it.
        """
        feed.desk.expect(len(sockets))
        self._sockets = sockets
        self._feed = feed
        self._token = token
        self._flags = flags
        self._state_dir = state_dir
        self._drain_limit_s = drain_limit_s
        self._clock = clock
        self._stopping = anyio.Event()
        self._processes: dict[int, anyio.abc.Process] = {}

    def stop(self) -> None:
        """Let every worker end its streams. Safe to repeat."""
        self._stopping.set()
        for process in self._processes.values():
            _send(process, signal.SIGTERM)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run them all; started once all serve. Raises PermanentError if one cannot start."""
        with ExitStack() as stack:
            feed = listen_unix(self._state_dir / "feed.sock")
            stack.callback(feed.close)
            admins = [listen_unix(self._admin_socket(at)) for at in range(len(self._sockets))]
            for one in admins:
                stack.callback(one.close)
            listener = HttpListener(feed_app(self._feed, self._token), feed, drain_limit_s=0.0)
            async with anyio.create_task_group() as feeding:
                await feeding.start(listener.run)
                async with anyio.create_task_group() as workers:
                    async with anyio.create_task_group() as starts:
                        for number, api in enumerate(self._sockets):
                            keep = partial(self._keep, number, api, admins[number])
                            starts.start_soon(workers.start, keep)
                    task_status.started()
                listener.stop()

    async def metrics(self, own: bytes) -> bytes:
        """Return one page of all workers' and the parent's `own`; a silent worker is left out."""
        pages = [own]
        for number in range(len(self._sockets)):
            transport = httpx.AsyncHTTPTransport(uds=str(self._admin_socket(number)))
            headers = {"authorization": f"Bearer {self._token.reveal()}"}
            async with httpx.AsyncClient(transport=transport, timeout=5.0) as client:
                try:
                    answer = await client.get("http://localhost/metrics", headers=headers)
                    answer.raise_for_status()
                except httpx.HTTPError as error:
                    log.warning("worker's metrics missing", worker=number, reason=str(error))
                    continue
                pages.append(answer.content)
        return await anyio.to_thread.run_sync(summed_pages, pages)

    def _admin_socket(self, number: int) -> Path:
        return self._state_dir / f"worker-{number}.sock"

    async def _keep(
        self,
        number: int,
        api: socket.socket,
        admin: socket.socket,
        *,
        task_status: TaskStatus[None],
    ) -> None:
        """Run one worker, again whenever it ends by itself, later and later if it does so soon."""
        pause_s = _RESTART_BASE_S
        has_served = False
        while not self._stopping.is_set():
            began = self._clock.monotonic()
            code = await self._run_once(number, api, admin, None if has_served else task_status)
            if self._stopping.is_set():
                return
            if self._clock.monotonic() - began > _GOOD_AFTER_S:
                pause_s = _RESTART_BASE_S
            has_served = True
            log.error("worker ended", worker=number, exit_code=code, again_in_s=pause_s)
            with anyio.move_on_after(pause_s):
                await self._stopping.wait()
            pause_s = min(_RESTART_CAP_S, pause_s * 2)

    async def _run_once(
        self,
        number: int,
        api: socket.socket,
        admin: socket.socket,
        first: TaskStatus[None] | None,
    ) -> int:
        order = WorkerOrder(
            flags={**self._flags, "state_dir": str(self._state_dir / f"worker-{number}")},
            feed=f"unix:{self._state_dir / 'feed.sock'}",
            token=self._token.reveal(),
            api_fd=api.fileno(),
            admin_fd=admin.fileno(),
        )
        process = await anyio.open_process(
            [sys.executable, "-m", "llmgw.server.worker"],
            stderr=None,
            pass_fds=[api.fileno(), admin.fileno()],
        )
        self._processes[number] = process
        try:
            assert process.stdin is not None  # noqa: S101 # both are pipes by default
            assert process.stdout is not None  # noqa: S101
            await process.stdin.send(msgspec.json.encode(order) + b"\n")
            if first is not None:
                await self._wait_ready(number, process.stdout)
                first.started()
            return await self._wait_end(process)
        finally:
            del self._processes[number]
            with anyio.CancelScope(shield=True):
                _send(process, signal.SIGKILL)
                await process.aclose()

    async def _wait_ready(self, number: int, output: anyio.abc.ByteReceiveStream) -> None:
        said = b""
        try:
            with anyio.fail_after(_START_LIMIT_S):
                while not said.endswith(READY):
                    said += await output.receive()
        except (TimeoutError, anyio.EndOfStream):
            raise PermanentError(
                f"router worker {number} did not start; its log lines above say why"
            ) from None

    async def _wait_end(self, process: anyio.abc.Process) -> int:
        async with anyio.create_task_group() as tasks:

            async def end_in_time() -> None:
                await self._stopping.wait()
                _send(process, signal.SIGTERM)
                await self._clock.sleep(self._drain_limit_s + _KILL_AFTER_S)
                _send(process, signal.SIGKILL)

            tasks.start_soon(end_in_time)
            code = await process.wait()
            tasks.cancel_scope.cancel()
        return code


def worker_flags(
    settings: ServerSettings, address: Address, drain_limit_s: float
) -> dict[str, object]:
    """Return what workers are told of the parent's settings, by dotted path."""
    return {
        "listen": str(address),
        # Never bound by a worker, but checked against each other.
        "admin_listen": "127.0.0.1:0",
        "agent_listen": "127.0.0.1:0",
        "control.port_range": settings.control.port_range,
        "drain_limit": drain_limit_s,
        **{
            name: getattr(settings, name).model_dump(mode="json")
            for name in ("router", "tls", "auth", "log")
        },
    }


def _send(process: anyio.abc.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        try:
            process.send_signal(number)
        except ProcessLookupError:
            pass  # it has just ended by itself
