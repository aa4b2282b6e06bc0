"""A cluster as a careful site runs it: two servers on one PostgreSQL, two routers, three nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.fleet import Fleet, Server, ask
from llmgw.testing.site import wait_for
from llmgw.testing.tiny_gguf import write_tiny_gguf


class Cluster:
    """The processes, and `llmgw ctl` against them."""

    def __init__(self, home: Path, postgres_url: str) -> None:
        self.fleet = Fleet(home, store_url=postgres_url)
        self.gguf = self.fleet.weights.with_name("tiny.gguf")
        write_tiny_gguf(self.gguf)

    def start(self) -> None:
        """Start all, and wait until every node is ready."""
        for _ in range(2):
            self.fleet.server([], control={"crash_limit": 1})
        for part in "abc":
            self.fleet.agent("--label", f"part={part}", *(["--pool", "spare"] * (part == "c")))
        for _ in range(2):
            self.fleet.router()
        wait_for("three nodes are ready", lambda: self._nodes_ready() == 3, 60)

    @property
    def targets(self) -> list[tuple[str, int]]:
        return [router.target for router in self.fleet.routers]

    def model(self, name: str, replicas: Any = 1, **profile: Any) -> dict[str, Any]:
        """A catalog entry of a tiny model under llama.cpp."""
        scale = {"min": replicas} if isinstance(replicas, int) else replicas
        ways = {"engine": "llamacpp", "weights": f"path:{self.gguf}", **profile}
        return {"name": name, "replicas": scale, "profiles": [ways]}

    def ctl(self, *arguments: str, server: Server | None = None) -> Any:
        """Return the parsed `--json` output of a ctl command that succeeds."""
        return self.fleet.ctl(*arguments, server=server)

    def apply(self, *models: dict[str, Any], verb: str = "apply") -> Any:
        """Apply (or plan) a file with these entries."""
        file = self.fleet.home / "catalog.json"
        file.write_text(json.dumps({"models": list(models)}))
        return self.ctl(verb, str(file))

    def replicas(self, model: str) -> list[dict[str, Any]]:
        """What the leader lists of a model."""
        found: list[dict[str, Any]] = self.ctl("replicas")["replicas"]
        return [item for item in found if item["model"] == model]

    def engines(self, model: str) -> dict[str, tuple[str, int]]:
        """Node and pid of each ready shard of a model, by id."""
        return {
            shard["id"]: (shard["node"], shard["pid"])
            for item in self.replicas(model)
            for shard in item["shards"]
            if shard["state"] == "ready"
        }

    def statuses(self, model: str) -> list[int]:
        """What each router answers to a request."""
        return [ask(target, model).status_code for target in self.targets]

    def wait_statuses(self, model: str, *wanted: int, limit_s: float = 60.0) -> None:
        """Wait until every router answers with one of these."""
        wait_for(
            f"{model} answers {wanted} on both routers, not {self.statuses(model)}",
            lambda: set(self.statuses(model)) <= set(wanted),
            limit_s,
        )

    def wait_engines(self, model: str, count: int, limit_s: float = 60.0) -> dict[str, Any]:
        """Return the ready engines once there are so many."""
        return wait_for(
            f"{model} has {count} ready engines",
            lambda: found if len(found := self.engines(model)) == count else None,
            limit_s,
        )

    def _nodes_ready(self) -> int:
        reply = self.fleet.leader().peek("/nodes") or {"nodes": ()}
        return sum(node["state"] == "ready" for node in reply["nodes"])


@pytest.fixture
def cluster(tmp_path: Path, postgres_url: str) -> Iterator[Cluster]:
    home = tmp_path / "cluster"
    home.mkdir()
    made = Cluster(home, postgres_url)
    try:
        made.start()
        yield made
    finally:
        made.fleet.close()
        for log in sorted(home.glob("*.log")):  # shown by pytest where the test failed
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-5000:]}")  # noqa: T201
