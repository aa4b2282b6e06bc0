"""The control plane knows no router, even indirectly."""

from __future__ import annotations

import subprocess
import sys

_LOOK = "import sys, llmgw.control.plane; print(*(name for name in sys.modules))"


def test_the_control_plane_brings_no_router_and_no_http_library() -> None:
    names = subprocess.run(
        [sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True
    )
    loaded = set(names.stdout.split())
    assert "llmgw.control.loops.publisher" in loaded
    assert not [name for name in loaded if name.startswith(("llmgw.router", "llmgw.server"))]
    assert loaded.isdisjoint({"httpx", "starlette", "uvicorn", "httptools", "grpc"})
