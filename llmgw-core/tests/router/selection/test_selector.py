"""What is chosen, and what a request that ends leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, ModelName
from llmgw.errors import RequestError
from llmgw.router.selection import Outcome, Reservation
from llmgw.router.selection.state import Condition
from llmgw.router.table import Unavailable, Why

Bench = Any
MakeBench = Callable[..., Bench]
MakeEndpoint = Callable[..., Endpoint]


def test_a_reservation_counts_from_the_choice_until_it_is_released(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"))
    got = bench.take(body_bytes=4000)
    (state,) = bench.selector.states()
    assert (state.in_flight, state.tokens_in_flight) == (1, 1000)
    got.first_byte()
    assert (state.in_flight, state.tokens_in_flight) == (1, 0)
    got.release(Outcome.OK)
    got.release(Outcome.RESET)
    got.first_byte()
    assert (state.in_flight, state.tokens_in_flight, state.failures) == (0, 0, 0)


def test_no_endpoint_gets_more_than_it_may_have(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a", max_inflight=2), make_endpoint("b", max_inflight=1))
    held = [bench.take() for _ in range(3)]
    assert bench.ask() == Unavailable(Why.SATURATED)
    held[0].release(Outcome.OK)
    assert isinstance(bench.ask(), Reservation)


def test_the_highest_priority_with_room_goes_first_and_the_rest_spills_over(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(
        make_endpoint("gpu", priority=10, max_inflight=2), make_endpoint("cpu", priority=1)
    )
    assert [bench.take().endpoint.id for _ in range(4)] == ["gpu", "gpu", "cpu", "cpu"]


def test_weights_share_the_traffic_of_equal_priorities(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a", weight=3.0), make_endpoint("b", weight=1.0))
    chosen = [bench.take().endpoint.id for _ in range(40)]
    assert (chosen.count("a"), chosen.count("b")) == (30, 10)


def test_a_profile_with_pools_uses_only_those(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench(profiles={"batch": {"pools": ["slow"]}})
    bench.publish(make_endpoint("a", pool="fast"), make_endpoint("b", pool="slow"))
    assert {bench.take(profile="batch").endpoint.id for _ in range(4)} == {"b"}
    assert {bench.take().endpoint.id for _ in range(8)} == {"a", "b"}


def test_a_draining_endpoint_gets_nothing_new_and_keeps_what_it_has(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"), make_endpoint("b"))
    held = bench.take(exclude=bench.all_but("a"))
    bench.publish(make_endpoint("a", draining=True), make_endpoint("b"))
    assert {bench.take().endpoint.id for _ in range(4)} == {"b"}
    assert bench.selector.usage()["a"].in_flight == 1
    held.release(Outcome.OK)
    assert bench.selector.usage()["a"].in_flight == 0


def test_a_retry_never_goes_where_the_request_has_been(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(
        make_endpoint("a"), make_endpoint("b", max_inflight=1), make_endpoint("c", priority=-1)
    )
    assert bench.take(exclude=frozenset({EndpointId("a")})).endpoint.id == "b"
    assert bench.take(exclude=frozenset({EndpointId("a")})).endpoint.id == "c"
    assert bench.ask(exclude=bench.all_but()) == Unavailable(Why.EXCLUDED)


def test_no_endpoint_and_no_room_are_told_apart(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a", max_inflight=1))
    bench.take()
    assert bench.ask() == Unavailable(Why.SATURATED)
    (state,) = bench.selector.states()
    bench.selector.set_stuck(state, True)
    assert bench.ask() == Unavailable(Why.NO_ENDPOINT)


def test_state_survives_a_new_table_and_ends_with_the_process(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a", incarnation="1"), make_endpoint("b"))
    bench.fail("a", 5)
    bench.publish(make_endpoint("a", incarnation="1", weight=2.0), make_endpoint("b"))
    assert bench.condition("a") is Condition.EJECTED
    bench.publish(make_endpoint("a", incarnation="2"), make_endpoint("b"))
    assert bench.condition("a") is Condition.SLOW_START


def test_requests_of_a_former_life_end_without_touching_the_new_one(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a", incarnation="1", max_inflight=1))
    old = bench.take()
    bench.publish(make_endpoint("a", incarnation="2", max_inflight=1))
    new = bench.take()
    assert bench.selector.usage()["a"].in_flight == 2
    old.release(Outcome.RESET)
    state = bench.selector.state(EndpointId("a"))
    assert state is not None
    assert (state.in_flight, state.failures) == (1, 0)
    new.release(Outcome.OK)
    bench.publish()
    assert bench.selector.usage() == {}


def test_an_endpoint_that_left_is_counted_until_its_last_request_ended(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"))
    held = bench.take()
    bench.publish(make_endpoint("b"))
    assert bench.selector.usage()["a"].in_flight == 1
    held.release(Outcome.OK)
    bench.publish(make_endpoint("b"))
    assert "a" not in bench.selector.usage()


async def test_idleness_counts_from_the_end_of_the_last_request(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"))
    assert bench.selector.usage()["a"].idle_s is None
    held = bench.take()
    await bench.clock.advance(60)
    assert bench.selector.usage()["a"].idle_s == 0.0
    held.release(Outcome.OK)
    await bench.clock.advance(7)
    assert bench.selector.usage()["a"].idle_s == 7.0


async def test_retries_are_a_fifth_of_the_requests_of_ten_seconds(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"))
    assert [bench.selector.may_retry(bench.route) for _ in range(4)] == [True, True, True, False]
    for _ in range(50):
        bench.take().release(Outcome.OK)
    assert sum(bench.selector.may_retry(bench.route) for _ in range(20)) == 7
    await bench.clock.advance(11)
    assert sum(bench.selector.may_retry(bench.route) for _ in range(20)) == 3


def test_room_is_announced_to_every_model_of_the_endpoint(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a", models=(ModelName("m"), ModelName("n"))), make_endpoint("b"))
    heard: list[str] = []
    bench.selector.on_room = heard.extend
    bench.take(exclude=bench.all_but("a")).release(Outcome.OK)
    assert sorted(heard) == ["m", "n"]


async def test_room_is_announced_whenever_an_endpoint_can_be_used_again(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"), make_endpoint("b"))
    bench.fail("a", 5)
    state = bench.selector.state(EndpointId("b"))
    heard: list[str] = []
    bench.selector.on_room = heard.extend
    bench.selector.set_answering(state, False)
    bench.selector.set_stuck(state, True)
    assert heard == []
    bench.selector.set_stuck(state, False)
    bench.selector.set_answering(state, True)
    assert heard == ["m", "m"]
    await bench.clock.advance(30)
    bench.selector.advance(bench.clock.monotonic())
    assert heard == ["m"] * 3, "half-open: a probe may go"
    bench.publish(make_endpoint("a"), make_endpoint("b"), make_endpoint("c"))
    assert heard == ["m"] * 4


def test_the_reason_names_profile_load_and_place(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a", pool="chat", priority=2), make_endpoint("b", draining=True))
    bench.take()
    assert bench.take().because == (
        "least_outstanding: 1 in flight, 1 of 2 usable, pool chat, priority 2"
    )


def test_a_profile_that_nobody_knows_is_refused_to_clients_and_forgiven_to_the_catalog(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"))
    with pytest.raises(RequestError, match="unknown routing profile 'x'"):
        bench.selector.require_profile("x")
    assert isinstance(bench.ask(profile="x"), Reservation)


def test_what_a_profile_needs_of_a_request_is_known_beforehand(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench(
        profiles={
            "mine": {"balancer": "session", "options": {"header": "X-User", "user_field": False}}
        }
    )
    bench.publish(make_endpoint("a"))
    assert bench.selector.needs(bench.route).prompt_bytes == 0
    assert bench.selector.needs(bench.route, "prefix").prompt_bytes == 4096
    mine = bench.selector.needs(bench.route, "mine")
    assert (mine.session_header, mine.session_user_field) == ("x-user", False)
    assert bench.selector.needs(bench.route, "load").engine_load


def test_who_asks_why_is_told_how_much_of_the_prompt_is_known_there(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench(default_profile="prefix")
    bench.publish(make_endpoint("a"), make_endpoint("b"))
    first = bench.take(prompt=b"x" * 1024)
    assert "0 of 4 prompt blocks known there" in first.because
    again = bench.take(prompt=b"x" * 768 + b"y" * 256)
    assert again.endpoint.id == first.endpoint.id
    assert "3 of 4 prompt blocks known there" in again.because
    assert "prompt blocks" not in bench.take(profile="round_robin").because


async def test_a_reservation_that_is_undone_leaves_no_trace(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    """What operators ask of the router must not keep a model awake."""
    bench = make_bench()
    bench.publish(make_endpoint("a"))
    bench.take().release(Outcome.OK)
    await bench.clock.advance(7.0)
    bench.take().undo()
    await bench.clock.advance(1.0)
    usage = bench.selector.usage()["a"]
    assert (usage.in_flight, usage.idle_s) == (0, 8.0)
