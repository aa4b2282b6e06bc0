"""What an idle agent has imported: on a node every megabyte is wanted by engines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio

#: Modules, and whatever is in them, that an agent has no use for once it has joined.
NEVER = (
    "OpenSSL",
    "alembic",
    "cryptography",
    "h11",
    "http",
    "httpcore",
    "httpx",
    "huggingface_hub",
    "jinja2",
    "llmgw.admin",
    "llmgw.control",
    "llmgw.ctl",
    "llmgw.router",
    "llmgw.server",
    "llmgw.sinks",
    "llmgw.store",
    "llmgw.testing",
    "llmgw_agent.hub",
    "llmgw_agent.node.minting.work",
    "llmgw_engine_vllm.locks.vllm_0_33_0",
    "multiprocessing",
    "prometheus_client",
    "requests",
    "rich",
    "sqlalchemy",
    "sqlite3",
    "starlette",
    "urllib.request",
    "uvicorn",
    "xml",
)


async def test_an_agent_that_has_joined_has_imported_nothing_that_it_does_not_need(
    workshop: Any, tmp_path: Path
) -> None:
    async with workshop.server("127.0.0.1:0").running() as server:
        command = [sys.executable, "-X", "importtime", "-m", "llmgw", "agent"]
        command += ["--server", server.address, "--node-id", "gpu-01"]
        command += ["--state-dir", str(tmp_path / "state"), "--join", workshop.trust.new_token()]
        output = tmp_path / "output"
        with output.open("w") as file:
            agent = await anyio.open_process(command, stdout=file, stderr=subprocess.STDOUT)
        async with agent:
            await server.reports.until(lambda: server.reports.beats, limit_s=18)
            agent.terminate()
            await agent.wait()
    imported = re.findall(r"^import time: .*\| +([\w.]+)$", output.read_text(), re.MULTILINE)
    assert "llmgw_agent.node.app" in imported
    found = [name for name in imported if any(f"{name}.".startswith(f"{no}.") for no in NEVER)]
    assert found == []
