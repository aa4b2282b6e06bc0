"""Pages and schemas that are made from the code are those of this code."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

GENERATE = Path(__file__).with_name("generate.py")


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """What the generator makes now, by file name, with the file that is there."""
    pages: dict[Path, str] = runpy.run_path(str(GENERATE))["pages"]()
    return {path.name: (path, text) for path, text in pages.items()}


@pytest.mark.parametrize(
    "name",
    ["metrics.md", "reference-settings.md", "reference-catalog.md", "server.json", "catalog.json"],
)
def test_a_made_page_is_current(made: dict[str, tuple[Path, str]], name: str) -> None:
    path, text = made[name]
    assert path.read_text() == text, f"run python {GENERATE}"


def test_every_key_has_a_type_and_a_meaning(made: dict[str, tuple[Path, str]]) -> None:
    for name in ("reference-settings.md", "reference-catalog.md"):
        for line in made[name][1].splitlines():
            if line.startswith("| `"):
                _, key, kind, _, meaning, _ = line.replace("\\|", "/").split("|")
                assert kind.strip(), key
                assert meaning.strip(), key
