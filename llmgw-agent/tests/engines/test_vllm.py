"""The real vLLM on a CPU, launched by an agent from a catalog entry, used through the router.

Installed by the agent, some gigabytes, unless LLMGW_VLLM_PYTHON names an interpreter that has it.
LLMGW_VLLM_MODEL names a folder with a small model; without it one is made.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.testing.site import Site, wait_for
from llmgw.testing.tiny_hf import write_tiny_hf, write_tiny_lora

pytestmark = pytest.mark.slow

START_S = 900  # its installation included, on two cores that do other things as well
CONTROL = {"settle": "5s"}


def test_vllm_is_launched_by_an_agent_and_answers_through_the_router(
    site: Site, tiny: Path, vllm: dict[str, Any], share_engines: Callable[[str], None]
) -> None:
    site.serve({"models": [{"name": "tiny", "profiles": [vllm]}], "control": CONTROL})
    share_engines("node")
    site.agent("node", "--weights-root", str(tiny.parent))
    wait_for("tiny serves", lambda: site.is_ready("tiny"), START_S)
    answer = site.ask("tiny")
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0


def test_lora_adapters_come_and_go_while_vllm_serves(
    site: Site, tmp_path: Path, vllm: dict[str, Any], share_engines: Callable[[str], None]
) -> None:
    base = write_tiny_hf(tmp_path / "weights" / "base")
    profile = {**vllm, "weights": f"path:{base}"}
    profile["options"] = {**vllm["options"], "enable_lora": True, "max_lora_rank": 8}

    def document(*adapters: str) -> dict[str, Any]:
        made = [{"name": name, "weights": f"path:{base.parent / name}"} for name in adapters]
        model = {"name": "base", "profiles": [{**profile, "adapters": made}]}
        return {"models": [model], "control": CONTROL}

    def text(model: str) -> str:
        answer = site.ask(model, temperature=0)
        assert answer.status_code == httpx.codes.OK, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    for seed, name in enumerate(("one", "two"), 1):
        write_tiny_lora(base.parent / name, seed=seed)
    server = site.serve(document("one"))
    share_engines("node")
    site.agent("node", "--weights-root", str(base.parent))
    wait_for("one serves", lambda: site.is_ready("one"), START_S)
    before = site.shards()

    (site.home / "llmgw.yaml").write_text(json.dumps(document("two")) + "\n")
    os.kill(server.process.pid, signal.SIGHUP)
    wait_for("two serves", lambda: site.is_ready("two"), 60)
    assert len({text("base"), text("two")}) == 2, "the adapter computes something else"
    assert site.ask("two").json()["model"] == "two"
    wait_for("one is gone", lambda: site.ask("one").status_code == httpx.codes.NOT_FOUND, 30)
    after = site.shards()
    assert {name: shard["pid"] for name, shard in after.items()} == {
        name: shard["pid"] for name, shard in before.items()
    }
