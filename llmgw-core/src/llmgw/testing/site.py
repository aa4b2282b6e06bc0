"""Real `llmgw` processes on loopback, started as a user starts them.

For end-to-end tests, of plugins as well: a `Site` is one machine of a user's, with a state
folder and ports of its own, so that several can live side by side.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

T = TypeVar("T")


def free_port() -> int:
    """Return a port that nobody has now.

    Not one that the system would choose: those are given to clients' connections, too, and one
    of them would take it before the process that it is meant for.
    """
    while True:
        port = 10000 + secrets.randbelow(10000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_for(what: str, look: Callable[[], T | None], limit_s: float = 60.0) -> T:
    """Return the first answer of `look` that is not None or False, asked every 50 ms."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if answer := look():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {limit_s:.0f} s: {what}")


def seconds_until(what: str, look: Callable[[], object], limit_s: float) -> float:
    """Return how long it took until `look` said something that is not false."""
    began = time.monotonic()
    wait_for(what, look, limit_s)
    return round(time.monotonic() - began, 2)


class Running:
    """One `llmgw …` process with its output in a file."""

    def __init__(
        self,
        arguments: list[str],
        output: Path,
        env: dict[str, str],
        *,
        prefix: Sequence[str] = (),
    ) -> None:
        """prefix: a program that becomes the process, such as `ip netns exec NAME`."""
        self.output = output
        self._file = output.open("ab")
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "llmgw", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def interrupt(self, limit_s: float = 60.0) -> int:
        """Ctrl-C, as a terminal sends it; return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(limit_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self._file.close()


class Site:
    """One machine of a user's: its state folder, ports and processes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.api_port, self.admin_port, self.agent_port = free_port(), free_port(), free_port()
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")},
            "XDG_STATE_HOME": str(home / "state"),
            "PYTHONUNBUFFERED": "1",
        }
        self._running: list[Running] = []

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.api_port}"

    @property
    def state_dir(self) -> Path:
        return self.home / "state" / "llmgw"

    def start(self, *arguments: str) -> Running:
        output = self.home / f"{len(self._running)}-{arguments[0]}.log"
        running = Running(list(arguments), output, self.env)
        self._running.append(running)
        return running

    def up(self, *arguments: str) -> Running:
        return self.start(
            "up",
            *arguments,
            *("--listen", f"127.0.0.1:{self.api_port}"),
            *("--admin-listen", f"127.0.0.1:{self.admin_port}"),
        )

    def run(self, *arguments: str, limit_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "llmgw", *arguments],
            capture_output=True,
            text=True,
            env=self.env,
            timeout=limit_s,
            check=False,
        )

    def ctl(self, *arguments: str) -> Any:
        """Return the parsed `--json` output of a ctl command."""
        done = self.run(
            *("ctl", "--server", f"http://127.0.0.1:{self.admin_port}"), *arguments, "--json"
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def is_ready(self, model: str) -> bool:
        try:
            listed = httpx.get(f"{self.base_url}/v1/models", trust_env=False, timeout=2)
            asked = self.ask(model, max_tokens=1)
        except httpx.HTTPError:
            return False
        return listed.status_code == 200 and asked.status_code == 200

    def ask(self, model: str, *, max_tokens: int = 16, **fields: Any) -> httpx.Response:
        body = {
            "model": model,
            "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": "Which city is the capital of France?"}],
            **fields,
        }
        url = f"{self.base_url}/v1/chat/completions"
        return httpx.post(url, json=body, trust_env=False, timeout=60)

    def close(self) -> None:
        for running in reversed(self._running):
            running.close()
