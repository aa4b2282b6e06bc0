"""A LoRA adapter from its entry in the catalog to an answer, and out again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.testing.fleet import Fleet, Server, ask
from llmgw.testing.site import wait_for

pytestmark = pytest.mark.e2e


def adapted(fleet: Fleet, *names: str) -> dict[str, Any]:
    model = fleet.model("base")
    folder = fleet.weights.parent
    made = [{"name": name, "weights": f"path:{folder / name}"} for name in names]
    model["profiles"][0]["adapters"] = made
    return model


def status(server: Server, model: str) -> int:
    return ask(server.target, model).status_code


def listed(server: Server) -> set[str]:
    url = f"http://{server.target[0]}:{server.target[1]}/v1/models"
    entries = httpx.get(url, trust_env=False, timeout=10).json()["data"]
    return {entry["id"] for entry in entries}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.close()
    for log in sorted(tmp_path.glob("*.log")):  # shown by pytest where the test failed
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")  # noqa: T201


def test_adapters_are_models_that_come_and_go_beside_their_base(fleet: Fleet) -> None:
    for name in ("sql", "poems"):
        folder = fleet.weights.parent / name
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(b"\0")
    server = fleet.server([adapted(fleet, "sql")])
    fleet.agent()
    wait_for("sql answers", lambda: status(server, "sql") == httpx.codes.OK, 60)
    assert ask(server.target, "sql").json()["model"] == "sql"
    assert ask(server.target, "base").json()["model"] == "base"
    pids = server.ready()

    server.serve_models([adapted(fleet, "poems", "lost")])
    wait_for("poems answers", lambda: status(server, "poems") == httpx.codes.OK, 60)
    wait_for("sql is gone", lambda: status(server, "sql") == httpx.codes.NOT_FOUND, 30)
    assert {"base", "poems"} <= listed(server)
    assert "sql" not in listed(server)
    wait_for("the lost one is refused", lambda: "lost" in ask(server.target, "lost").text, 30)
    assert status(server, "lost") == httpx.codes.SERVICE_UNAVAILABLE
    assert server.ready() == pids, "nothing was started anew"
