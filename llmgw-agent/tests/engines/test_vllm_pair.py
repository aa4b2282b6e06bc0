"""Two real vLLM engines on a CPU, one for prompts and one for answers, from one catalog entry.

Needs an interpreter with vLLM and `nixl` in LLMGW_VLLM_PYTHON: none of our locks has nixl, which
comes with packages for CUDA. On a CPU its caches travel through main memory.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.testing.site import Site, wait_for

pytestmark = pytest.mark.slow

START_S = 900
QUESTION = "Count the stars above the old harbour, slowly and twice over, before the tide. " * 4


def has_nixl() -> bool:
    python = os.environ.get("LLMGW_VLLM_PYTHON")
    return bool(python) and not subprocess.call([str(python), "-I", "-c", "import nixl"])


def counted(url: str, metric: str) -> float:
    """Return the value of a counter of an engine, which asks no key for its metrics."""
    page = httpx.get(f"{url}/metrics", trust_env=False).text
    found = re.search(rf"^{re.escape(metric)}\{{[^}}]*\}} (\S+)$", page, re.MULTILINE)
    assert found is not None, page
    return float(found[1])


@pytest.mark.skipif(not has_nixl(), reason="LLMGW_VLLM_PYTHON names no interpreter with nixl")
def test_a_cache_travels_from_the_prefill_engine_to_the_decode_engine(
    site: Site, tiny: Path, vllm: dict[str, Any], share_engines: Callable[[str], None]
) -> None:
    profiles = [{"name": role, "role": role, **vllm} for role in ("prefill", "decode")]
    site.serve({"models": [{"name": "tiny", "profiles": profiles}], "control": {"settle": "5s"}})
    share_engines("node")
    site.agent("node", "--weights-root", str(tiny.parent))
    wait_for("tiny serves", lambda: site.is_ready("tiny"), START_S)
    messages = [{"role": "user", "content": QUESTION}]
    answers = [site.ask("tiny", messages=messages, temperature=0, max_tokens=12) for _ in range(2)]
    for answer in answers:
        assert answer.status_code == httpx.codes.OK, answer.text
        assert answer.headers["x-llmgw-endpoint"].count(",") == 1
    assert len({answer.json()["choices"][0]["message"]["content"] for answer in answers}) == 1
    urls = {item["role"]: item["url"] for item in site.ctl("endpoints")["endpoints"]}
    assert counted(urls["prefill"], "vllm:generation_tokens_total") >= len(answers)
    # The decode engine has not computed what it could read.
    assert counted(urls["decode"], "vllm:external_prefix_cache_hits_total") > 0
