"""Fields set and left out in a body, on its bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.router.forward.edits import with_fields
from llmgw.router.forward.pairing import copies_of

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
_NAMES = st.sampled_from(["model", "stream", "x", 'q"uote', "\\", "é", "stream_options"])


@given(
    body=st.dictionaries(_NAMES, _VALUES, min_size=1),
    fields=st.dictionaries(_NAMES, st.none() | st.integers() | st.text()),
    escaped=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_a_body_reads_as_if_it_had_been_parsed_and_written_anew(
    body: dict[str, object], fields: dict[str, object], escaped: bool, indent: int | None
) -> None:
    raw = json.dumps(body, ensure_ascii=escaped, indent=indent).encode("utf-8", "replace")
    before = json.loads(raw)
    expected = {**before, **fields}
    expected = {name: value for name, value in expected.items() if fields.get(name, 0) is not None}
    edited = bytes(with_fields(raw, fields))
    pairs = json.loads(edited, object_pairs_hook=list)
    assert len(pairs) == len({name for name, _ in pairs})
    assert json.loads(edited) == expected


def test_a_field_that_is_there_twice_or_in_disguise_is_left_out_as_well() -> None:
    body = b'{"a": 1, "k": {"k": 2}, "\\u006b": 3, "b": [{"k": 4}], "k" : 5 }'
    assert bytes(with_fields(body, {"k": None})) == b'{"a": 1,"b": [{"k": 4}]}'
    assert bytes(with_fields(body, {"k": 6})) == b'{"k":6,"a": 1,"b": [{"k": 4}]}'


def test_what_is_not_named_stays_as_it_was_written() -> None:
    body = b'{ "seed": 1.0000000000000000001e2, "s": "\\ud800 \\u00e9", "k": 1 }'
    edited = bytes(with_fields(body, {"k": None}))
    assert edited == b'{"seed": 1.0000000000000000001e2,"s": "\\ud800 \\u00e9"}'


def test_a_body_that_needs_no_edit_is_passed_on_itself() -> None:
    body = b'{"model": "m"}'
    assert with_fields(body, {"k": None}) is body


@pytest.mark.parametrize(
    ("body", "copies"),
    [
        (b'{"messages": []}', 1),
        (b'{"n": 3, "messages": []}', 3),
        (b'{"prompt": "one"}', 1),
        (b'{"prompt": ["one", "two"], "n": 2}', 4),
        (b'{"prompt": [1, 2, 3]}', 1),
        (b'{"prompt": [[1, 2], [3]]}', 2),
        (b'{"prompt": [], "n": 0}', 1),
        (b'{"n": "many"}', 1),
        (b'{"n": null, "prompt": ["one", "two"]}', 2),
    ],
)
def test_answers_that_a_body_asks_for_are_counted(body: bytes, copies: int) -> None:
    assert copies_of(body) == copies
