"""The real vLLM on a CPU, launched by an agent from a catalog entry, used through the router.

LLMGW_VLLM_PYTHON names an interpreter that has vLLM, LLMGW_VLLM_MODEL a folder with a small model
(docs/engines/vllm.md says how to make both).
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import yaml

from llmgw.testing.site import Site, wait_for

PYTHON, MODEL = os.environ.get("LLMGW_VLLM_PYTHON"), os.environ.get("LLMGW_VLLM_MODEL")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PYTHON and MODEL), reason="LLMGW_VLLM_PYTHON, LLMGW_VLLM_MODEL unset"),
]

SMALL = {
    "max_model_len": 512,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "cpu_kvcache_space": 1,
}
START_S = 500  # two cores, shared with whatever else the machine does


def serve(site: Site) -> None:
    # Not the environment's own `vllm`, which does not know itself where it is the CPU wheel.
    start = importlib.util.find_spec("llmgw_engine_vllm.serve")
    assert start is not None
    made = {
        "engine": "vllm",
        "command": [PYTHON, "-I", start.origin],
        "weights": f"path:{MODEL}",
        "options": SMALL,
    }
    config = site.home / "llmgw.yaml"
    config.write_text(
        yaml.safe_dump(
            {"models": [{"name": "tiny", "profiles": [made]}], "control": {"settle": "5s"}}
        )
    )
    site.start(
        *("server", "--config", str(config)),
        *("--listen", f"127.0.0.1:{site.api_port}"),
        *("--admin-listen", f"127.0.0.1:{site.admin_port}"),
        *("--agent-listen", f"127.0.0.1:{site.agent_port}"),
    )
    token = site.state_dir / "join.token"
    wait_for("the join token is there", token.is_file, 60)
    site.start(
        *("agent", "--server", f"127.0.0.1:{site.agent_port}"),
        *("--node-id", "node-0", "--state-dir", str(site.home / "agent")),
        *("--weights-root", str(Path(str(MODEL)).parent), "--join", f"@{token}"),
        "--stop-engines",
    )


def test_vllm_is_launched_by_an_agent_and_answers_through_the_router(site: Site) -> None:
    serve(site)
    wait_for("tiny serves", lambda: site.is_ready("tiny"), START_S)
    answer = site.ask("tiny")
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0
