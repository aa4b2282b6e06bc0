"""The processes that `llmgw up` owns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.abc

from llmgw.logs import get_logger

log = get_logger(__name__)

_SHOWN_LINES = 20
_RESTART_PAUSE_S = 0.5


class ChildEnded(Exception):
    """A child ended by itself with an error; `lines` are its last ones."""

    def __init__(self, name: str, exit_code: int, lines: Sequence[str], log_file: Path) -> None:
        super().__init__(f"{name} ended with exit code {exit_code}")
        self.name = name
        self.exit_code = exit_code
        self.lines = tuple(lines)
        self.log_file = log_file


class Child:
    """One `llmgw` process in a session of its own, so that Ctrl-C reaches `up` alone."""

    def __init__(self, name: str, arguments: Sequence[str], log_file: Path) -> None:
        self.name = name
        self._arguments = tuple(arguments)
        self._log_file = log_file
        self._process: anyio.abc.Process | None = None
        self._stopping = False

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Start it, and start it again when it is killed; return once it was stopped.

        Raises ChildEnded if it exits by itself: that is a fault which a restart would only hide.
        """
        task_status.started()
        while not self._stopping:
            exit_code = await self._run_once()
            if self._stopping:
                return
            if exit_code >= 0:
                raise ChildEnded(self.name, exit_code, self._last_lines(), self._log_file)
            # Somebody killed it, or the machine ran out of memory. Engines go on serving, and
            # the new process finds them.
            log.warning("process was killed, starting it again", name=self.name, signal=-exit_code)
            await anyio.sleep(_RESTART_PAUSE_S)

    async def stop(self, limit_s: float) -> None:
        """Ask it to end and wait; kill it at the limit."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(limit_s):
            await process.wait()
            return
        process.kill()
        await process.wait()

    def kill(self) -> None:
        """End it now (the second Ctrl-C)."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _run_once(self) -> int:
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        program = [sys.executable, "-m", "llmgw", *self._arguments]
        tether = [sys.executable, "-m", "llmgw.cli.up.tether", str(os.getpid())]
        with self._log_file.open("ab") as output:
            self._process = await anyio.open_process(
                [*tether, *program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return await self._process.wait()

    def _last_lines(self) -> list[str]:
        with self._log_file.open(encoding="utf-8", errors="replace") as lines:
            return [line.rstrip("\n") for line in deque(lines, maxlen=_SHOWN_LINES)]
