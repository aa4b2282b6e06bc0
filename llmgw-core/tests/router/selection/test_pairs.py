"""Two slots for one request: both at once, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmgw.domain.roles import Role
from llmgw.router.selection import Outcome
from llmgw.router.table import Unavailable, Why


@pytest.fixture
def pair(make_bench: Callable[..., Any], make_endpoint: Callable[..., Any]) -> Any:
    """Return a bench with two prefill and two decode endpoints of one slot each."""
    bench = make_bench()
    bench.publish(
        *(make_endpoint(f"p{n}", role=Role.PREFILL, max_inflight=1) for n in (1, 2)),
        *(make_endpoint(f"d{n}", role=Role.DECODE, max_inflight=1) for n in (1, 2)),
    )
    return bench


def in_flight(bench: Any) -> dict[str, int]:
    return {s.endpoint.id: s.in_flight for s in bench.selector.states() if s.in_flight}


def test_a_request_gets_a_slot_of_either_role(pair: Any) -> None:
    got = pair.take()
    assert got.endpoint.role is Role.DECODE
    assert got.prefill.endpoint.role is Role.PREFILL
    assert len(in_flight(pair)) == 2


def test_the_prompt_weighs_on_the_engine_that_computes_it(pair: Any) -> None:
    got = pair.take(body_bytes=4000)
    assert got.prefill.state.tokens_in_flight == 1000
    assert got.state.tokens_in_flight == 0


@pytest.mark.parametrize("full", [Role.PREFILL, Role.DECODE])
def test_where_one_role_is_full_no_slot_of_the_other_is_taken(pair: Any, full: Role) -> None:
    held = [pair.take(), pair.take()]
    for got in held:
        (got if full is Role.PREFILL else got.prefill).release(Outcome.OK)
    before = in_flight(pair)
    told: list[object] = []
    pair.selector.on_room = told.append
    answer = pair.ask()
    assert isinstance(answer, Unavailable)
    assert (answer.why, answer.role) == (Why.SATURATED, full)
    assert in_flight(pair) == before
    # What was never anybody's is no room: whoever waits would be asked to come for ever.
    assert told == []


def test_room_on_either_role_is_told_of_under_the_models_name(pair: Any) -> None:
    got = pair.take()
    told: list[object] = []
    pair.selector.on_room = told.append
    got.prefill.release(Outcome.OK)
    got.release(Outcome.OK)
    assert told == [("m",), ("m",)]


def test_who_has_been_tried_is_left_out_of_either_role(pair: Any) -> None:
    got = pair.take(exclude=frozenset({"p1", "d2"}))
    assert (got.prefill.endpoint.id, got.endpoint.id) == ("p2", "d1")


def test_roles_are_judged_apart(pair: Any) -> None:
    """All prefill endpoints but one may be ill without a doubt about the decode endpoints."""
    for _ in range(5):
        got = pair.take(exclude=frozenset({"p2", "d2"}))
        got.prefill.release(Outcome.RESET)
        got.release(Outcome.PARTNER_FAILED)
    assert pair.selector.state("p1").is_ejected
    assert not pair.selector.state("d1").is_ejected
    assert pair.selector.state("d1").failures == 0
    assert pair.take().prefill.endpoint.id == "p2"


def test_a_look_at_the_choice_leaves_no_trace_on_either(pair: Any) -> None:
    pair.take().undo()
    assert in_flight(pair) == {}


def test_a_suspect_goes_where_its_like_runs_on_either_role(pair: Any) -> None:
    first = pair.take(suspect=b"x")
    answer = pair.ask(suspect=b"x")
    assert isinstance(answer, Unavailable)
    assert answer.why is Why.HELD_BACK
    first.prefill.release(Outcome.OK)
    assert pair.selector.quarantine.company(b"x") == {first.state: 1}
