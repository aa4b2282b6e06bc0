"""Bodies that are made short before they are read."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.errors import RequestError
from llmgw.router.ingress.abridged import abridged
from llmgw.router.ingress.shape import read_fields

LONG = 200_000
KEPT = 64
texts = st.text(max_size=20) | st.builds(
    lambda part, times: part * times, st.text(min_size=1, max_size=8), st.integers(1, 4000)
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


def same(short: Any, whole: Any) -> bool:
    """Say whether two values differ in nothing but the ends of long strings."""
    if isinstance(whole, str) and isinstance(short, str) and short != whole:
        return len(short) >= KEPT // 12 and whole.startswith(short)
    if isinstance(whole, list):
        return len(short) == len(whole) and all(map(same, short, whole))
    if isinstance(whole, dict):
        return short.keys() == whole.keys() and all(same(short[key], whole[key]) for key in whole)
    return bool(short == whole)


@given(values, st.booleans())
def test_nothing_but_long_strings_is_made_shorter(value: Any, escapes: bool) -> None:
    body = json.dumps({"messages": value}, ensure_ascii=escapes).encode()
    # A string may be cut in the middle of a letter: nobody reads what is left of it.
    assert same(json.loads(abridged(body, KEPT).decode(errors="ignore")), json.loads(body))


def test_a_document_is_left_out_and_its_beginning_kept() -> None:
    body = json.dumps({"messages": "a document " * 20_000, "model": "m"}).encode()
    short = abridged(body, KEPT)
    assert len(short) < 500
    assert short.startswith(body[: KEPT + 14])
    assert short.endswith(b'", "model": "m"}')


@pytest.mark.parametrize("text", ['"' * LONG, "\\" * LONG, "\u4e2d" * LONG])
def test_a_string_that_is_all_escapes_stays_whole(text: str) -> None:
    body = json.dumps({"input": text, "model": "m"}).encode()
    assert abridged(body, KEPT) is body


def test_runs_of_backslashes_cost_no_time() -> None:
    body = b'{"input":"%b","model":"m"}' % ((b"\\" * 3998 + b'\\"') * 2000)
    began = time.thread_time()
    assert abridged(body, KEPT) is body
    assert time.thread_time() - began < 0.1  # a look at each backslash took 600 times as long


def test_what_stands_behind_a_document_is_read() -> None:
    text = "x" * LONG
    fields = read_fields(json.dumps({"input": text, "model": "m", "stream": True}).encode())
    assert (fields.model, fields.stream) == ("m", True)


@pytest.mark.parametrize("twice", ["model", "stream"])
def test_a_field_on_both_sides_of_a_document_is_there_twice(twice: str) -> None:
    body = b'{"model":"m","stream":true,"input":"%b","%b":"m"}' % (b"x" * LONG, twice.encode())
    with pytest.raises(RequestError) as caught:
        read_fields(body)
    assert caught.value.code in ("duplicate_parameter", "invalid_type")


def test_what_is_wrong_is_said_of_the_body_as_it_was_sent() -> None:
    body = b'{"model":"m","input":"%b",}' % (b"x" * LONG)
    with pytest.raises(RequestError, match=str(len(body) - 1)):
        read_fields(body)


def test_a_prompt_is_there_as_far_as_it_was_asked_for() -> None:
    body = json.dumps({"model": "m", "messages": [{"content": "y" * LONG}]}).encode()
    fields = read_fields(body, prompt_bytes=4096)
    begun = body.index(b"[")
    assert fields.start_of_prompt(("messages",), 4096) == body[begun : begun + 4096]
