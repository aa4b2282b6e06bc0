"""A server before engines that come and go."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from llmgw.testing import echo_engine
from llmgw.testing.site import Site, free_port, wait_for

ENGINES = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, default=10.0, help="how long the streams run")
    parser.addoption("--streams", type=int, default=2_000, help="how many at a time")


class Engine:
    """One stand-in on a port that it keeps over its lives."""

    def __init__(self, number: int) -> None:
        self.id = f"e{number}"
        self.port = free_port()
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, echo_engine.__file__, "--port", str(self.port), "--interval", "0.5"]
        )

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._process.wait(10)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()


class Fleet:
    """The engines, the server before them, and which of them it is told of."""

    def __init__(self, home: Path) -> None:
        self.site = Site(home)
        self.engines = [Engine(number) for number in range(ENGINES)]
        self._config = home / "llmgw.yaml"

    def start(self) -> None:
        """Return once it serves."""
        self._write({engine.id for engine in self.engines})
        self.server = self.site.start(
            *("server", "--config", str(self._config)),
            *("--listen", f"127.0.0.1:{self.site.api_port}"),
            *("--admin-listen", f"127.0.0.1:{self.site.admin_port}"),
            *("--agent-listen", f"127.0.0.1:{self.site.agent_port}"),
        )
        self.key: str = wait_for("a key can be made", self._new_key)
        wait_for("it serves", self._serves)

    def publish(self, chosen: set[str]) -> None:
        """Let the server know of these endpoints only."""
        self._write(chosen)
        self.server.process.send_signal(signal.SIGHUP)

    def _write(self, chosen: set[str]) -> None:
        endpoints = [
            {"id": one.id, "url": f"http://127.0.0.1:{one.port}", "models": ["demo"]}
            for one in self.engines
            if one.id in chosen
        ]
        settings: dict[str, Any] = {"auth": {"api_keys": "on"}, "endpoints": endpoints}
        whole = self._config.with_suffix(".new")
        whole.write_text(yaml.safe_dump(settings))
        whole.replace(self._config)

    @property
    def memory_kib(self) -> int:
        """Anonymous memory of the server. Of the pages of files, it is charged with more whenever
        another process that has them mapped is killed."""
        rollup = Path(f"/proc/{self.server.process.pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) for line in rollup.splitlines() if line[:9] == "Pss_Anon:")

    @property
    def open_files(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.server.process.pid}/fd").iterdir())

    def gauges(self) -> dict[str, float]:
        """Everything that must be zero when nobody is there, by series."""
        token = (self.site.state_dir / "admin.token").read_text().strip()
        page = httpx.get(
            f"http://127.0.0.1:{self.site.admin_port}/metrics",
            headers={"authorization": f"Bearer {token}"},
            trust_env=False,
        )
        page.raise_for_status()
        series = [line.rpartition(" ") for line in page.text.splitlines() if line[:1] != "#"]
        counted = ("llmgw_requests_in_flight", "llmgw_connections", "llmgw_queue")
        return {name: float(value) for name, _, value in series if name.startswith(counted)}

    def close(self) -> None:
        self.site.close()
        for engine in self.engines:
            engine.close()

    def _new_key(self) -> str | None:
        server = f"http://127.0.0.1:{self.site.admin_port}"
        done = self.site.run("ctl", "--server", server, "keys", "create", "churn")
        return done.stdout.strip() if done.returncode == 0 else None

    def _serves(self) -> bool:
        try:
            answer = httpx.post(
                f"{self.site.base_url}/v1/chat/completions",
                json={"model": "demo", "user": "first"},
                headers={"authorization": f"Bearer {self.key}"},
                trust_env=False,
            )
        except httpx.HTTPError:
            return False
        return answer.status_code == 200


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.close()
