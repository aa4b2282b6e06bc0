"""aiperf, a load test made for inference engines, runs clean against llmgw with llama.cpp."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.site import Site, wait_for
from llmgw.testing.tiny_hf import write_tiny_hf

OUTPUT_TOKENS = 16
PROGRAM = Path(sys.executable).with_name("aiperf")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PROGRAM.exists(), reason="needs aiperf: nox -s loadtest"),
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


def run(site: Site, folder: Path, requests: int, *arguments: str) -> dict[str, Any]:
    """Run one benchmark; return aiperf's own metrics of it."""
    prompts = folder / "prompts.jsonl"
    asked = [{"text": f"Tell me fact number {number} about Paris."} for number in range(requests)]
    prompts.write_text("".join(f"{json.dumps(line)}\n" for line in asked))
    # It counts tokens by a tokenizer; one of our own, so that no hub is asked.
    tokenizer = write_tiny_hf(folder / "tokenizer")
    done = subprocess.run(
        [
            *(str(PROGRAM), "profile", "--model", "smollm2", "--url", site.base_url),
            *("--endpoint-type", "chat", "--tokenizer", str(tokenizer)),
            *("--input-file", str(prompts), "--custom-dataset-type", "single_turn"),
            *("--request-count", str(requests), "--extra-inputs", f"max_tokens:{OUTPUT_TOKENS}"),
            *("--artifact-dir", str(folder / "report"), "--ui", "none"),
            *("--no-gpu-telemetry", "--no-server-metrics"),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = folder / "report" / "profile_export_aiperf.json"
    metrics: dict[str, Any] = json.loads(report.read_text())
    return metrics


@pytest.mark.parametrize(
    ("requests", "arguments"),
    [
        (8, ("--concurrency", "1")),
        (8, ("--concurrency", "1", "--streaming")),
        (40, ("--concurrency", "8", "--streaming")),
    ],
    ids=["plain", "streams", "eight streams"],
)
def test_every_request_of_a_benchmark_succeeds(
    site: Site, requests: int, arguments: tuple[str, ...], tmp_path: Path, figures: Any
) -> None:
    metrics = run(site, tmp_path, requests, *arguments)

    def average(name: str) -> float | None:
        found = metrics.get(name)
        return None if found is None else round(float(found["avg"]), 1)

    figures(
        arguments=" ".join(arguments),
        requests=average("request_count"),
        errors=average("error_request_count"),
        first_token_ms=average("time_to_first_token"),
        between_tokens_ms=average("inter_token_latency"),
        output_tokens_per_second=average("output_token_throughput"),
    )
    assert average("request_count") == requests
    assert not average("error_request_count")
    assert not metrics.get("error_summary")
