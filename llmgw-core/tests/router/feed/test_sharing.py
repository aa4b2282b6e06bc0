"""How a limit is divided: to those who need it, wholly, and without moving what suffices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmgw.domain.shares import even_part
from llmgw.router.feed.sharing import divide, may_grow_to

NOTHING: dict[str, int | None] = {}


def test_where_nobody_needs_more_parts_are_even_and_need_no_telling() -> None:
    assert divide(10, {"a": 5, "b": 0}, NOTHING) == {"a": None, "b": None}
    assert divide(10, {"a": 0, "b": 0}, {"a": 9, "b": 1}) == {"a": None, "b": None}


def test_who_needs_more_gets_what_others_leave_and_the_rest_is_spread() -> None:
    assert divide(100, {"a": 70, "b": 10}, NOTHING) == {"a": 80, "b": 20}
    assert divide(100, {"a": 500, "b": 10}, NOTHING) == {"a": 90, "b": 10}
    assert divide(100, {"a": 500, "b": 400}, NOTHING) == {"a": 50, "b": 50}
    assert divide(5, {"a": 9, "b": 9}, NOTHING) in ({"a": 3, "b": 2}, {"a": 2, "b": 3})


def test_parts_that_suffice_are_kept() -> None:
    before = {"a": 80, "b": 20}
    assert divide(100, {"a": 75, "b": 5}, before) == before
    assert divide(100, {"a": 75, "b": 21}, before) != before


def test_what_others_still_hold_is_not_given_twice_and_what_one_has_is_not_taken() -> None:
    assert may_grow_to(80, limit=100, least=50, held_elsewhere=50) == 50
    assert may_grow_to(80, limit=100, least=50, held_elsewhere=30) == 70
    assert may_grow_to(50, limit=100, least=10, held_elsewhere=80) == 20
    assert may_grow_to(50, limit=100, least=50, held_elsewhere=100) == 50
    assert may_grow_to(0, limit=100, least=50, held_elsewhere=100) == 1


@given(
    st.integers(1, 1000),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2000), min_size=1),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000)),
)
def test_the_whole_limit_is_divided_and_nobody_is_worse_off_than_evenly(
    limit: int, wants: dict[str, int], before: dict[str, int]
) -> None:
    parts = divide(limit, wants, dict(before))
    even = even_part(limit, len(wants))
    given_ = {router: even if part is None else part for router, part in parts.items()}
    assert sum(given_.values()) <= limit + len(wants) - 1
    fair = limit // len(wants)
    for router, want in wants.items():
        assert given_[router] >= min(want, fair)
