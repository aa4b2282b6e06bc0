"""The map of the house has every room, and the import directions that are checked."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
CORE = ROOT / "llmgw-core" / "src" / "llmgw"
AGENT = ROOT / "llmgw-agent" / "src" / "llmgw_agent"
ROOMS = PAGE.partition("## 5.")[2].partition("## 6.")[0]


@pytest.mark.parametrize(
    "folder",
    [CORE, CORE / "domain", CORE / "contracts", CORE / "control", CORE / "router", AGENT],
    ids=lambda folder: folder.name,
)
def test_every_room_is_on_the_map(folder: Path) -> None:
    rooms = {path.stem for path in folder.iterdir() if path.suffix in ("", ".py")}
    rooms = {room for room in rooms if not room.startswith(("_", "."))} - {"py"}
    named = set(re.findall(r"[a-z_]+", ROOMS))
    assert rooms <= named, rooms - named


@pytest.mark.parametrize("name", ["core", "control", "router", "agent"])
def test_the_directions_on_the_page_are_those_that_are_checked(name: str) -> None:
    checked = configparser.ConfigParser()
    checked.read(ROOT / ".importlinter")
    layers = checked[f"importlinter:contract:{name}"]["layers"].split("\n")
    block = PAGE.partition("    cli : testing")[1] + PAGE.partition("    cli : testing")[2]
    lines = block.partition("    plugins import only")[0]
    chain = lines.partition("\n\n")[0] if name == "core" else _chain(lines, name)
    said = [" ".join(layer.split()) for layer in chain.replace("\n", " ").split(">")]
    assert said == [layer for layer in layers if layer not in ("", "__main__")]


def _chain(lines: str, name: str) -> str:
    return re.split(r"\n    \w+:  ", lines.partition(f"{name}:")[2])[0]
