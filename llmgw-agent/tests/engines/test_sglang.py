"""The real SGLang on a CPU, launched by agents from a catalog entry, used through the router.

LLMGW_SGLANG_PYTHON names an interpreter that has it (docs/engines/sglang.md says how far that goes).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.site import Running, Site, wait_for

PYTHON = os.environ.get("LLMGW_SGLANG_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="LLMGW_SGLANG_PYTHON unset: there is no build for CPUs"),
]

START_S = 500
SMALL = {
    "attention_backend": "torch_native",
    "disable_overlap_schedule": True,
    "mem_fraction_static": 0.2,
    "max_total_tokens": 8192,
}


def catalog(tiny: Path, **profile: Any) -> dict[str, Any]:
    made = {"engine": "sglang", "command": [PYTHON], "weights": f"path:{tiny}", "options": SMALL}
    model = {"name": "tiny", "profiles": [{**made, **profile}]}
    return {"models": [model], "control": {"settle": "5s"}}


def test_sglang_is_launched_by_an_agent_and_answers_through_the_router(
    site: Site, tiny: Path
) -> None:
    site.serve(catalog(tiny))
    site.agent("node", "--weights-root", str(tiny.parent))
    wait_for("tiny serves", lambda: site.is_ready("tiny"), START_S)
    assert site.ask("tiny").json()["usage"]["completion_tokens"] > 0


def test_two_ranks_answer_together_and_leave_together(
    site: Site,
    tiny: Path,
    start_on: Callable[..., Running],
    ready_ranks: Callable[[], dict[int, dict[str, Any]] | None],
) -> None:
    env = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "GLOO_SOCKET_IFNAME": "eth0"}
    pair = catalog(tiny, nodes=2, parallel={"tensor": 2}, fabric="lab", env=env)
    site.serve(pair, agents="0.0.0.0")
    agents = [start_on("a", tiny), start_on("b", tiny)]
    ranks = wait_for("both ranks are ready", ready_ranks, START_S)
    wait_for("it serves", lambda: site.is_ready("tiny"), 60)
    assert site.ask("tiny").json()["usage"]["completion_tokens"] > 0
    for agent in agents:
        agent.close()
    assert not [rank for rank in ranks.values() if Path(f"/proc/{rank['pid']}").exists()]
