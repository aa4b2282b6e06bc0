"""One replica of the real vLLM over two machines: each a network namespace with an agent in it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.site import Running, Site, wait_for
from llmgw.testing.tiny_hf import write_tiny_hf
from llmgw.testing.wires import Wires

pytestmark = pytest.mark.slow

START_S = 900
ENGINES = "tcp X 20000-29999"
MOUNT = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'

StartOn = Callable[..., Running]
Look = Callable[[], dict[int, dict[str, Any]] | None]


def catalog(vllm: dict[str, Any], **profile: Any) -> dict[str, Any]:
    pair = {
        **vllm,
        "nodes": 2,
        "parallel": {"tensor": 2},
        "fabric": "lab",
        "env": {"GLOO_SOCKET_IFNAME": "eth0"},
        **profile,
    }
    model = {"name": "tiny", "profiles": [pair]}
    return {"models": [model], "control": {"settle": "5s", "base_backoff": "2s"}}


def test_two_ranks_meet_answer_together_and_are_restarted_together(
    wires: Wires,
    site: Site,
    tiny: Path,
    vllm: dict[str, Any],
    start_on: StartOn,
    ready_ranks: Look,
) -> None:
    server = site.serve(catalog(vllm, start_limit="15s"), agents="0.0.0.0")
    wires.drop("b", ENGINES)
    agents = [start_on("a", tiny), start_on("b", tiny)]
    refused = "was not met: port"
    wait_for("a firewall is named", lambda: any(refused in each.text for each in agents), START_S)
    assert ready_ranks() is None
    wires.heal("b")
    # A loading vLLM is silent for longer than ranks need to meet.
    (site.home / "llmgw.yaml").write_text(json.dumps(catalog(vllm)) + "\n")
    os.kill(server.process.pid, signal.SIGHUP)

    before = wait_for("both ranks are ready", ready_ranks, START_S)
    assert {before[0]["node"], before[1]["node"]} == {"a", "b"}
    wait_for("it serves", lambda: site.is_ready("tiny"), 60)
    assert site.ask("tiny").json()["usage"]["completion_tokens"] > 0

    os.kill(before[1]["pid"], signal.SIGKILL)
    wait_for("rank 0 is ended, too", lambda: not Path(f"/proc/{before[0]['pid']}").exists(), 120)
    after = wait_for("both are ready again", ready_ranks, START_S)
    assert {after[0]["pid"], after[1]["pid"]}.isdisjoint({before[0]["pid"], before[1]["pid"]})
    assert site.ask("tiny").status_code == 200


def test_ranks_with_other_weights_are_not_begun(
    site: Site, tiny: Path, tmp_path: Path, vllm: dict[str, Any], start_on: StartOn
) -> None:
    site.serve(catalog(vllm), agents="0.0.0.0")
    other = write_tiny_hf(tmp_path / "other", seed=7)
    agents = [
        start_on("a", tiny),
        start_on("b", tiny, prefix=("sh", "-c", MOUNT, "sh", str(other), str(tiny))),
    ]
    refused = "has other weights under the same name"
    wait_for("it is named", lambda: any(refused in each.text for each in agents), START_S)
    assert not list(site.home.glob("[ab]/shards/*/log/*"))
