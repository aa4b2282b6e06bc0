"""A placement policy of somebody else's, made from the guide's text and installed with pip."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.fleet import Fleet, ask
from llmgw.testing.site import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

GUIDE = Path(__file__).parents[3] / "docs" / "plugins-worked.md"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A server that chooses places by the policy `teams`, a node of team red and one of nobody."""
    source, site = tmp_path / "acme-llmgw", tmp_path / "site"
    source.mkdir()
    for name, text in re.findall(
        r"```(?:python|toml)\n# (\S+)\n(.*?)```", GUIDE.read_text(), re.DOTALL
    ):
        (tmp_path / name).write_text(text)  # `acme-llmgw/…`
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([*pip, *offline, str(source)], check=True)
    made = Fleet(tmp_path)
    made.env["PYTHONPATH"] = os.pathsep.join([str(site), made.env["PYTHONPATH"]])
    try:
        made.server([], control={"placement_policy": "teams"})
        made.agent("--label", "team=red")
        made.agent()
        for node in ("node-0", "node-1"):
            wait_for(f"{node} is ready", lambda: made.leader().node_state(node) == "ready", 60)  # noqa: B023
        yield made
    finally:
        made.close()


def test_an_installed_policy_decides_where_replicas_go_and_is_heard_in_explain(
    fleet: Fleet,
) -> None:
    catalog = fleet.home / "catalog.json"
    models = [fleet.model("red/chat"), fleet.model("chat", replicas=2), fleet.model("blue/chat")]
    catalog.write_text(json.dumps({"models": models}))
    planned = fleet.ctl("plan", str(catalog))["actions"]
    assert all("memory is not known" in action["because"] for action in planned), "its own words"
    fleet.ctl("apply", str(catalog))
    fleet.wait_ready(3)
    assert places(fleet, "red/chat") == ["node-0"]
    assert places(fleet, "chat") == ["node-1", "node-1"], "pack and spread would use both"
    assert places(fleet, "blue/chat") == []

    told = fleet.try_ctl("explain", "blue/chat").stdout
    assert "node-0 belongs to team red" in told
    assert "node-1 belongs to no team" in told
    assert "other_team" in told
    refused = ask(fleet.servers[0].target, "blue/chat")
    assert refused.status_code == 503
    assert "belongs to" in refused.text


def places(fleet: Fleet, model: str) -> list[str]:
    listed: list[dict[str, Any]] = fleet.ctl("replicas")["replicas"]
    return [node for item in listed if item["model"] == model for node in item["nodes"]]
