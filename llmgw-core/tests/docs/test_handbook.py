"""The operations handbook explains every refusal and every failure, in the code's own words."""

from __future__ import annotations

import re
from pathlib import Path

from llmgw.control.decide.codes import RefusalCode
from llmgw.domain.replicas import FailureCause

HANDBOOK = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()


def rows(title: str) -> list[list[str]]:
    section = HANDBOOK.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (`\w+`.*) \|$", section, re.MULTILINE)
    return [line.split(" | ") for line in lines]


def test_every_refusal_has_its_meaning_and_a_way_out() -> None:
    told = rows("Refusals")
    assert [row[:2] for row in told] == [[f"`{code}`", code.meaning] for code in RefusalCode]
    assert all(row[2] for row in told)


def test_every_failure_has_a_meaning_and_a_way_out() -> None:
    told = rows("Failures")
    assert [row[0] for row in told] == [f"`{cause}`" for cause in FailureCause]
    assert all(row[1] and row[2] for row in told)
