"""What the guide shows is true."""

from __future__ import annotations

import re
from pathlib import Path

from llmgw.config.loading import load_server

GUIDE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_file_in_the_guide_is_accepted(tmp_path: Path) -> None:
    found = re.search(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    file = tmp_path / "llmgw.yaml"
    file.write_text(found[1])
    loaded = load_server(file, {"HOME": "/h"}, {})
    assert loaded.settings.models[0].aliases == ("llama3", "default")


def test_every_variable_in_the_guide_is_understood() -> None:
    said = re.findall(r"`(LLMGW_[A-Z_]+)=(.+?)`", GUIDE.read_text())
    assert said
    env = {"HOME": "/h", **{name: value.strip("'") for name, value in said}}
    load_server(None, env, {}, needs_work=False)
