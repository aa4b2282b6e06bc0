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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

T = TypeVar("T")
_CLOSE_S = 75.0  # an agent that ends its engines gives vLLM 45 s


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
                self.process.wait(_CLOSE_S)
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

    def start(self, *arguments: str, prefix: Sequence[str] = ()) -> Running:
        """prefix: a program that becomes the process, such as `ip netns exec NAME`."""
        output = self.home / f"{len(self._running)}-{arguments[0]}.log"
        running = Running(list(arguments), output, self.env, prefix=prefix)
        self._running.append(running)
        return running

    def serve(self, document: Mapping[str, Any], *, agents: str = "127.0.0.1") -> Running:
        """Start a server with this configuration; return when nodes can join.

        agents: the address that it listens on for them.
        """
        config = self.home / "llmgw.yaml"
        config.write_text(json.dumps(document) + "\n")  # JSON is YAML
        running = self.start(
            *("server", "--config", str(config)),
            *("--listen", f"127.0.0.1:{self.api_port}"),
            *("--admin-listen", f"127.0.0.1:{self.admin_port}"),
            *("--agent-listen", f"{agents}:{self.agent_port}"),
        )
        wait_for("the join token is there", (self.state_dir / "join.token").is_file, 60)
        return running

    def agent(
        self,
        node: str,
        *flags: str,
        server: str = "127.0.0.1",
        join: str | None = None,
        prefix: Sequence[str] = (),
    ) -> Running:
        """Start an agent that ends its engines when it ends.

        server: the server's address as this node sees it. join: a token; None: the local one.
        """
        return self.start(
            *("agent", "--server", f"{server}:{self.agent_port}", "--node-id", node),
            *("--state-dir", str(self.home / node), "--stop-engines"),
            *("--join", join or f"@{self.state_dir / 'join.token'}", *flags),
            prefix=prefix,
        )

    def shards(self) -> dict[str, dict[str, Any]]:
        """Every shard that the fleet reports, by id."""
        found = self.ctl("replicas")["replicas"]
        return {shard["id"]: shard for replica in found for shard in replica["shards"]}

    def up(self, *arguments: str) -> Running:
        return self.start(
            "up",
            *arguments,
            *("--listen", f"127.0.0.1:{self.api_port}"),
            *("--admin-listen", f"127.0.0.1:{self.admin_port}"),
        )

    def run(
        self, *arguments: str, limit_s: float = 30.0, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "llmgw", *arguments],
            capture_output=True,
            text=True,
            env=self.env,
            timeout=limit_s,
            check=False,
            cwd=cwd,
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
