"""How deep a body may be nested, and how long it takes to find out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.errors import RequestError
from llmgw.router.ingress.shape import DEPTH_LIMIT, read_fields


def nested(items: list[bytes]) -> bytes:
    return b"[%b]" % b",".join(items)


TREES = st.recursive(st.just(b"[]"), lambda inner: st.lists(inner, max_size=4).map(nested))


def depth_of(brackets: bytes) -> int:
    deepest = depth = 0
    for letter in brackets:
        depth += {ord("["): 1, ord("]"): -1}.get(letter, 0)
        deepest = max(deepest, depth)
    return deepest


def is_taken(value: bytes) -> bool:
    try:
        read_fields(b'{"model": "m", "value": %b}' % value)
    except RequestError as error:
        return error.code != "too_deep"
    return True


@given(tree=TREES, around=st.integers(0, DEPTH_LIMIT), times=st.integers(1, 40))
def test_a_body_is_refused_exactly_from_the_limit_on(tree: bytes, around: int, times: int) -> None:
    value = b"[" * around + nested([tree] * times) + b"]" * around
    assert is_taken(value) is (depth_of(value) < DEPTH_LIMIT)


@pytest.mark.parametrize("depth", [DEPTH_LIMIT - 2, DEPTH_LIMIT - 1])
def test_deep_ones_side_by_side_are_as_deep_as_one(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    assert is_taken(nested([deep] * 1000)) is (depth + 2 <= DEPTH_LIMIT)
