"""`llmgw ctl` against a whole server, which runs in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from click.testing import CliRunner, Result

from llmgw.ctl.commands import ctl
from llmgw.testing.clock import FastClock
from llmgw.testing.cluster import RunningServer, running_server
from llmgw.testing.engine_script import Script, ScriptedEngine

Run = Callable[..., Result]


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as opened:
        yield opened


@pytest.fixture
def server(portal: BlockingPortal, tmp_path: Path) -> Iterator[RunningServer]:
    """A server with a catalog of one model, and no node yet."""
    models: list[dict[str, Any]] = [
        {
            "name": "tiny",
            "profiles": [
                {"engine": "fake", "weights": "path:/w", "devices": {"count": 1, "memory_gib": 10}}
            ],
        }
    ]
    state = tmp_path / "llmgw"
    serving = running_server(
        state, models=models, control={"port_range": (1024, 65535)}, clock=FastClock()
    )
    with portal.wrap_async_context_manager(serving) as running:
        yield running


@pytest.fixture
def engine_port(portal: BlockingPortal) -> Iterator[int]:
    """A port where something answers, so that the router takes it for a healthy engine."""
    with portal.wrap_async_context_manager(ScriptedEngine(Script.plain({}))) as engine:
        yield urlsplit(engine.url).port or 0


@pytest.fixture
def run(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one command line against the server, as a shell on its machine would."""
    # The token is found where a server of this user keeps it.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LLMGW_SERVER", f"http://{server.serving.admin}")

    def invoke(*arguments: str, text: str | None = None) -> Result:
        return CliRunner().invoke(ctl, list(arguments), input=text)

    return invoke
