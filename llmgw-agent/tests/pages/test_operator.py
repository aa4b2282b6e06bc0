"""The pages for operators, carried out on the machines of docs/install.md and some more."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.machines import Machine, Network
from llmgw.testing.tiny_wheel import write_wheel

pytestmark = pytest.mark.slow

#: A hub on the node, since the machines have no internet.
_HUB = """\
import threading
from llmgw.testing.fake_hub import serve_hub
files = {"model.safetensors": b"weights", "config.json": b"{}"}
with serve_hub({"Qwen/Qwen3-0.6B": files}) as url:
    print(f"hub at {url} serves", flush=True)
    threading.Event().wait()
"""
_CATALOG = """\
models:
  - name: llama-3.1-8b
    aliases: [llama3]
    replicas: {min: 0}
    profiles:
      - {engine: llamacpp, weights: "path:/srv/models/chat-q4.gguf"}
"""
_AGENT = """\
servers: ["10.0.0.1:8082"]
node_id: gpu-03
state_dir: /var/lib/llmgw
data_address: 10.0.0.4
join: "@/etc/llmgw/join.token"
"""
#: Sets of an engine's packages, small ones: what an agent does with them is the same.
_LOCKS = (("vllm", "0.33.0"), ("vllm", "0.32.0-cpu"))


def wait_ready(server: Machine, node: str) -> None:
    server.type(f"until llmgw ctl nodes | grep --silent '^{node} .*ready'; do sleep 0.2; done")


def token_of(server: Machine) -> str:
    return server.type("llmgw ctl join-token create")


def test_the_pages_of_a_running_cluster_work(
    two: tuple[Machine, Machine], opt: Path, page: Any
) -> None:
    """What docs/install.md has set up is looked at, changed, and made safe, page by page."""
    server, _ = two
    server.write("catalog.yaml", _CATALOG)
    server.type("cp /etc/llmgw/llmgw.yaml .")
    stolen = server.network.machine("gpu-02", "10.0.0.3", opt=opt)
    stolen.write("join.token", token_of(server))
    agent = "llmgw agent --server 10.0.0.1:8082 --data-address 10.0.0.3 --join @join.token"
    joined = stolen.start(agent)
    wait_ready(server, "gpu-02")

    operations = page("docs/operations.md")
    said = operations.do("First look", server)
    assert "gpu-02" in said
    operations.finish()
    upgrades = page("docs/upgrades.md")
    upgrades.do("Upgrades", server)
    upgrades.do("Engines and models", server)
    observability = page("docs/observability.md")
    observability.do("Metrics", server, server)  # prometheus.yml, too, is a file with a name
    observability.do("Logs", server)
    observability.finish()
    security = page("docs/security.md")
    security.do("Keys and tokens", server)
    security.do("Nodes", server, server)
    security.finish()
    upgrades.do("A node's system", server)
    upgrades.finish()
    joined.interrupt()


def test_the_page_of_nodes_works(
    opt: Path, network: Callable[..., Network], folder: Path, page: Any
) -> None:
    """A machine joins by flags, another by systemd, and their owner fetches things onto them."""
    machines = network()
    server, node, third = (
        machines.machine(name, address, opt=opt)
        for name, address in (("gw", "10.0.0.1"), ("gpu-01", "10.0.0.2"), ("gpu-03", "10.0.0.4"))
    )
    locks = folder / "locks"
    locks.mkdir()
    for engine, version in _LOCKS:
        release = version.replace("-", "+")  # as a wheel may be called
        requirement = write_wheel(folder / "index", engine, release, {f"{engine}.py": b""})
        (locks / f"{engine}-{version}.txt").write_text(requirement)
    node.write("hub.py", _HUB)
    hub = node.start(f"{sys.executable} hub.py", shows="serves")
    (url,) = re.findall("hub at (.*) serves", hub.text)
    node.set(HF_ENDPOINT=url, NO_PROXY="127.0.0.1", LLMGW_AGENT__ENGINE_LOCKS=str(locks))

    nodes = page("docs/nodes.md")
    node.write("join.token", nodes.do("A second machine", server, server, server))
    nodes.do("A second machine", node, node)
    third.write("/etc/llmgw/agent.yaml", _AGENT)
    third.write("/etc/llmgw/join.token", token_of(server))
    nodes.do("Under systemd", third, third)
    wait_ready(server, "gpu-03")
    wait_ready(server, "gpu-01")
    said = nodes.do("Weights", server)
    assert "Qwen/Qwen3-0.6B" in said
    older, version = _LOCKS[1]
    server.type(f"llmgw ctl engines install gpu-01 {older} {version}")
    said = nodes.do("Engines beside each other", server)
    assert "0.33.0" in said
    nodes.finish()
    hub.interrupt()


def test_the_readme_of_the_agent_says_what_the_page_of_nodes_says(page: Any) -> None:
    assert set(page("llmgw-agent/README.md").commands) <= set(page("docs/nodes.md").commands)
