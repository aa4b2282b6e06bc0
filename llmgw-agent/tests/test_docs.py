"""The guide knows every reason for which a server refuses an agent."""

from __future__ import annotations

from pathlib import Path

from llmgw_agent.wire.frames import GoodbyeCode

GUIDE = Path(__file__).parents[2] / "docs" / "nodes.md"


def test_every_goodbye_has_a_way_out_in_the_guide() -> None:
    section = GUIDE.read_text().partition("## When a server refuses an agent")[2]
    lines = section.partition("\n## ")[0].splitlines()
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("| `")]
    assert rows == [f"`{code}`" for code in GoodbyeCode]
