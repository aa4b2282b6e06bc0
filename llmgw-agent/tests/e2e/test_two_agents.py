"""Two agents with ids of their own on one machine, over mutual TLS, each with its model."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw.testing.site import Running, Site, wait_for

pytestmark = pytest.mark.e2e

TOKEN = f"llmgw1.8fed4542.{'A' * 43}.{'B' * 43}"  # well-formed, of no cluster


def catalog(gguf: Path) -> dict[str, Any]:
    def model(name: str, node: str) -> dict[str, Any]:
        profile = {"engine": "llamacpp", "weights": f"path:{gguf}", "labels": {"part": node}}
        return {"name": name, "profiles": [profile]}

    return {"models": [model("one", "a"), model("two", "b")], "control": {"settle": "5s"}}


def start_server(site: Site, gguf: Path) -> Running:
    config = site.home / "llmgw.yaml"
    config.write_text(yaml.safe_dump(catalog(gguf)))
    running = site.start(
        *("server", "--config", str(config)),
        *("--listen", f"127.0.0.1:{site.api_port}"),
        *("--admin-listen", f"127.0.0.1:{site.admin_port}"),
        *("--agent-listen", f"127.0.0.1:{site.agent_port}"),
    )
    wait_for("the join token is there", (site.state_dir / "join.token").is_file, 20)
    return running


def start_agent(site: Site, gguf: Path, node: str, *more: str) -> Running:
    return site.start(
        *("agent", "--server", f"127.0.0.1:{site.agent_port}"),
        *("--node-id", f"node-{node}", "--state-dir", str(site.home / f"agent-{node}")),
        *("--label", f"part={node}", "--weights-root", str(gguf.parent)),
        *("--join", f"@{site.state_dir / 'join.token'}", "--stop-engines", *more),
    )


def shards(site: Site) -> dict[str, dict[str, Any]]:
    replicas = site.ctl("replicas")["replicas"]
    return {replica["model"]: replica["shards"][0] for replica in replicas if replica["shards"]}


def test_two_agents_serve_and_do_not_disturb_each_other(site: Site, tiny_gguf: Path) -> None:
    start_server(site, tiny_gguf)
    start_agent(site, tiny_gguf, "a")
    second = start_agent(site, tiny_gguf, "b")
    for model in ("one", "two"):
        wait_for(f"{model} serves", partial(site.is_ready, model), 60)
    before = shards(site)
    assert {shard["node"] for shard in before.values()} == {"node-a", "node-b"}

    os.kill(before["two"]["pid"], signal.SIGKILL)
    wait_for("two has a new engine", lambda: shards(site)["two"]["restarts"] == 1, 30)
    assert shards(site)["one"]["pid"] == before["one"]["pid"]
    assert site.ask("one").status_code == 200

    assert second.interrupt() == 0, second.text
    assert site.ask("one").status_code == 200
    assert shards(site)["one"]["pid"] == before["one"]["pid"]


def test_a_second_agent_with_the_same_node_id_is_refused(site: Site, tiny_gguf: Path) -> None:
    start_server(site, tiny_gguf)
    start_agent(site, tiny_gguf, "a")
    wait_for("one serves", lambda: site.is_ready("one"), 60)
    pid = shards(site)["one"]["pid"]
    other = site.start(
        *("agent", "--server", f"127.0.0.1:{site.agent_port}"),
        *("--node-id", "node-a", "--state-dir", str(site.home / "other")),
        *("--join", f"@{site.state_dir / 'join.token'}"),
    )
    wait_for("it says why", lambda: "another agent has a live session" in other.text, 30)
    assert shards(site)["one"]["pid"] == pid


def test_a_second_agent_on_the_same_state_folder_is_refused(site: Site, tiny_gguf: Path) -> None:
    start_server(site, tiny_gguf)
    start_agent(site, tiny_gguf, "a")
    wait_for("one serves", lambda: site.is_ready("one"), 60)
    other = start_agent(site, tiny_gguf, "a")
    assert other.process.wait(20) == 2
    assert "another agent (pid" in other.text


def test_a_restarted_server_adopts_what_runs(site: Site, tiny_gguf: Path) -> None:
    server = start_server(site, tiny_gguf)
    start_agent(site, tiny_gguf, "a")
    start_agent(site, tiny_gguf, "b")
    wait_for("both serve", lambda: site.is_ready("one") and site.is_ready("two"), 60)
    before = shards(site)
    server.kill()
    start_server(site, tiny_gguf)
    wait_for("both serve again", lambda: site.is_ready("one") and site.is_ready("two"), 60)
    # Until its agents are back a server serves from the table on its disk.
    wait_for("both reported", lambda: len(shards(site)) == 2, 30)
    after = shards(site)
    assert {name: shard["pid"] for name, shard in after.items()} == {
        name: shard["pid"] for name, shard in before.items()
    }


def test_an_agent_without_a_server_keeps_trying_and_says_so(site: Site) -> None:
    agent = site.start(
        *("agent", "--server", f"127.0.0.1:{site.agent_port}", "--node-id", "lonely"),
        *("--state-dir", str(site.home / "agent"), "--join", TOKEN),
    )
    wait_for("it says which server", lambda: f"127.0.0.1:{site.agent_port}" in agent.text, 20)
    assert agent.process.poll() is None
    assert agent.interrupt() == 0
