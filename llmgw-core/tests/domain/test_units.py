"""Counts as people write them."""

from __future__ import annotations

from llmgw.domain.units import counted


def test_one_is_singular_and_none_is_not() -> None:
    assert [counted(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
