"""docs/airgap.md: gather wheels where there is internet, install and serve where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw.cli.up.plan import DEMO_WEIGHTS
from llmgw.testing.machines import Network

pytestmark = pytest.mark.slow

_SERVER = {
    "models": [{"name": "chat", "profiles": [{"engine": "llamacpp", "weights": DEMO_WEIGHTS}]}]
}
_AGENT = {"servers": ["127.0.0.1:8082"]}


def test_the_page_without_internet_works(
    network: Callable[..., Network], clone: Path, page: Any, asking: Callable[..., str]
) -> None:
    machines = network(with_index=False)
    desk, far = machines.machine("desk", "10.0.0.5"), machines.machine("far", "10.0.0.6")
    shutil.copytree(clone, desk.home, dirs_exist_ok=True)
    airgap = page("docs/airgap.md")
    airgap.do("Without internet", desk, desk, online=True)
    shutil.copytree(desk.home / "wheels", far.home / "wheels")
    airgap.do("Without internet", far)
    far.type("cp -r wheels /srv/wheels")
    far.write("llmgw.yaml", yaml.safe_dump(_SERVER))
    far.write("/etc/llmgw/agent.yaml", yaml.safe_dump(_AGENT))
    server = far.start("llmgw server --config llmgw.yaml")
    airgap.do("Weights", far)
    asking(far, "chat")
    airgap.finish()
    server.interrupt()
    said = far.type("llmgw up --once --state-dir $PWD/once")
    assert "Paris" in said
