"""The OpenAPI document is true: schemathesis looks for requests and answers that it does not know.

Needs the program `schemathesis`, which `nox -s schemathesis` brings; skipped without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from llmgw.testing.cluster import RunningServer, running_server
from llmgw.testing.values import inventory

SCHEMATHESIS = shutil.which("schemathesis")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(SCHEMATHESIS is None, reason="needs schemathesis"),
]

ENDLESS = "/(follow|feed|logs|profile)"
# The document foresees 501 and 503, and 500 nowhere: that is how a mistake of ours is found.
CHECKS = (
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)
MODEL = {
    "name": "tiny",
    "profiles": [
        {"engine": "fake", "weights": "path:/w", "devices": {"count": 1, "memory_gib": 10}}
    ],
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with two nodes."""
    serving = running_server(tmp_path / "llmgw", models=[MODEL])
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving) as running,
    ):
        for name in ("gpu-01", "gpu-02"):
            portal.call(running.nodes.join, inventory(name, devices=2))
        yield running


def test_schemathesis_finds_nothing(server: RunningServer, tmp_path: Path) -> None:
    token = (server.state_dir / "admin.token").read_text().strip()
    done = subprocess.run(
        [
            SCHEMATHESIS or "",
            "run",
            f"http://{server.serving.admin}/admin/v1/openapi.json",
            *("--header", f"Authorization: Bearer {token}"),
            *("--checks", ",".join(CHECKS)),
            *("--max-examples", os.environ.get("LLMGW_EXAMPLES", "30")),
            *("--exclude-path-regex", ENDLESS),
            "--suppress-health-check=all",
            "--no-color",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2000:]
