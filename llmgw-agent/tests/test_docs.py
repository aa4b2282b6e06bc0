"""The guide knows every reason for which a server refuses an agent."""

from __future__ import annotations

from pathlib import Path

from llmgw_agent.wire.frames import GoodbyeCode

GUIDE = Path(__file__).parents[2] / "docs" / "nodes.md"


def test_every_goodbye_has_a_way_out_in_the_guide() -> None:
    rows = [line.split("|")[1].strip() for line in GUIDE.read_text().splitlines() if "| `" in line]
    assert rows == [f"`{code}`" for code in GoodbyeCode]
