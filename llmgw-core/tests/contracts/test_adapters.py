"""What an engine's list of models says of its adapters."""

from __future__ import annotations

import json

import pytest

from llmgw.contracts.adapters import listed_adapters


def test_entries_with_a_parent_are_adapters() -> None:
    entries = [
        {"id": "base", "root": "/models/base", "parent": None},
        {"id": "alias", "root": "/models/base"},
        {"id": "sql", "root": "/weights/sql", "parent": "base"},
    ]
    assert listed_adapters(json.dumps({"data": entries})) == {"sql": "/weights/sql"}


@pytest.mark.parametrize(
    "body", ["", "[]", "{}", '{"data": 1}', '{"data": [1]}', '{"data": [{"parent": 1}]}']
)
def test_anything_else_is_no_list(body: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        listed_adapters(body)
