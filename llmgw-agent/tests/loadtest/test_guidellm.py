"""guidellm, a load test made for inference engines, runs clean against llmgw with llama.cpp."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.site import Site, wait_for

REQUESTS = 40
OUTPUT_TOKENS = 32

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("guidellm") is None, reason="needs guidellm: nox -s loadtest"
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    made.up()
    try:
        wait_for("the demo model answers", lambda: made.is_ready("smollm2"), 150)
        yield made
    finally:
        made.close()


def run(site: Site, profile: str, folder: Path) -> dict[str, Any]:
    """Run one benchmark; return guidellm's own metrics of it."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text(
        "".join(
            json.dumps(
                {
                    "prompt": f"Tell me fact number {number} about Paris.",
                    "output_tokens_count": OUTPUT_TOKENS,
                }
            )
            + "\n"
            for number in range(REQUESTS)
        )
    )
    report = folder / "report.json"
    # Our own answer to /health is asked for first. Prompts come from a file: made-up ones need a
    # tokenizer from a hub.
    done = subprocess.run(
        [
            *(sys.executable, "-m", "guidellm", "run", "--disable-progress"),
            *("--backend", f"kind=openai_http,target={site.base_url},model=smollm2"),
            *("--profile", profile),
            *("--constraint", f"kind=max_requests,count={REQUESTS}"),
            *("--data", f"kind=json_file,path={prompts}"),
            *("--output", f"kind=json,path={report}"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    metrics: dict[str, Any] = json.loads(report.read_text())["benchmarks"][0]["metrics"]
    return metrics


@pytest.mark.parametrize("profile", ["kind=synchronous", "kind=concurrent,streams=8"])
def test_every_request_of_a_benchmark_succeeds(
    site: Site, profile: str, tmp_path: Path, figures: Any
) -> None:
    metrics = run(site, profile, tmp_path)

    def median(name: str) -> float:
        return round(float(metrics[name]["successful"]["median"]), 1)

    figures(
        requests=metrics["request_totals"],
        first_token_ms=median("time_to_first_token_ms"),
        between_tokens_ms=median("inter_token_latency_ms"),
        output_tokens_per_second=median("output_tokens_per_second"),
    )
    assert metrics["request_totals"]["successful"] == REQUESTS
    assert metrics["request_totals"]["errored"] == 0
    assert metrics["output_token_count"]["successful"]["min"] > 0
