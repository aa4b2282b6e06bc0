"""Every promise in the documentation has a test, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def rows_of(page: str) -> list[str]:
    return [
        line
        for line in (ROOT / "docs" / page).read_text().splitlines()
        if line.startswith("| ") and not line.startswith(("| promise", "| case", "| ---"))
    ]


ROWS = rows_of("behaviours.md")
CASES = rows_of("cases.md")


@pytest.mark.parametrize("row", [*ROWS, *(row for row in CASES if "| not yet |" not in row)])
def test_a_promise_names_tests_that_exist(row: str) -> None:
    named = re.findall(r"`(core|agent):([\w/]+\.py)::(test_\w+)`", row)
    assert named, "no test is named"
    for distribution, file, name in named:
        tree = ast.parse((ROOT / f"llmgw-{distribution}" / "tests" / file).read_text())
        functions = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in functions, f"{file} has no {name}"


def test_no_promise_was_lost() -> None:
    assert len(ROWS) >= 48


def test_every_case_has_its_row() -> None:
    assert sorted(row[2:6] for row in CASES) == [f"C{number:03}" for number in range(1, 71)]
