"""Who is left out for failing, and how it comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, ModelName
from llmgw.router.selection import Outcome, Reservation
from llmgw.router.selection.state import Condition
from llmgw.router.table import Unavailable, Why

Bench = Any
MakeBench = Callable[..., Bench]
MakeEndpoint = Callable[..., Endpoint]

FAILURES = (
    Outcome.ENGINE_ERROR,
    Outcome.CONNECT_FAILED,
    Outcome.RESET,
    Outcome.FIRST_BYTE_TIMEOUT,
    Outcome.IDLE_TIMEOUT,
)
NO_FAILURES = (Outcome.OK, Outcome.CLIENT_LEFT, Outcome.CLIENT_ERROR, Outcome.ENGINE_BUSY)


@pytest.mark.parametrize("outcome", FAILURES)
def test_five_failures_in_a_row_eject(
    make_bench: MakeBench, make_endpoint: MakeEndpoint, outcome: Outcome
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"), make_endpoint("b"))
    bench.fail("a", 4, outcome)
    assert bench.condition("a") is Condition.HEALTHY
    bench.fail("a", 1, outcome)
    assert bench.condition("a") is Condition.EJECTED
    assert {bench.take().endpoint.id for _ in range(4)} == {"b"}


@pytest.mark.parametrize("outcome", NO_FAILURES)
def test_what_is_no_fault_of_the_engine_never_ejects(
    make_bench: MakeBench, make_endpoint: MakeEndpoint, outcome: Outcome
) -> None:
    """A client's mistake is not an engine's fault, and full is not broken."""
    bench = make_bench()
    bench.publish(make_endpoint("a"), make_endpoint("b"))
    bench.fail("a", 50, outcome)
    assert bench.condition("a") is Condition.HEALTHY


def test_one_good_answer_between_failures_starts_the_count_anew(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"), make_endpoint("b"))
    for _ in range(5):
        bench.fail("a", 4)
        bench.fail("a", 1, Outcome.OK)
    assert bench.condition("a") is Condition.HEALTHY


def test_a_busy_answer_between_failures_does_not(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"), make_endpoint("b"))
    bench.fail("a", 4)
    bench.fail("a", 1, Outcome.ENGINE_BUSY)
    bench.fail("a", 1)
    assert bench.condition("a") is Condition.EJECTED


def test_the_last_endpoint_is_never_ejected(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"))
    bench.fail("a", 20)
    assert isinstance(bench.ask(), Reservation)


def test_never_more_than_half_are_ejected(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(*(make_endpoint(id_) for id_ in "abcd"))
    for id_ in "abcd":
        bench.fail(id_, 9)
    ejected = [id_ for id_ in "abcd" if bench.condition(id_) is Condition.EJECTED]
    assert ejected == ["a", "b"]


def test_an_endpoint_of_two_models_is_not_ejected_if_one_of_them_would_be_left_with_none(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a", models=(ModelName("m"), ModelName("n"))), make_endpoint("b"))
    bench.fail("a", 20)
    assert bench.condition("a") is Condition.HEALTHY


async def test_after_its_time_one_probe_decides_and_slow_start_follows(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"), make_endpoint("b"))
    bench.fail("a", 5)
    await bench.clock.advance(29.9)
    assert bench.ask(exclude=bench.all_but("a")) == Unavailable(Why.SATURATED)
    await bench.clock.advance(0.2)
    probe = bench.take(exclude=bench.all_but("a"))
    assert bench.condition("a") is Condition.HALF_OPEN
    assert bench.ask(exclude=bench.all_but("a")) == Unavailable(Why.SATURATED), "a second probe"
    assert "trial" in probe.because
    probe.release(Outcome.OK)
    assert bench.condition("a") is Condition.SLOW_START
    state = bench.selector.state(EndpointId("a"))
    assert state is not None
    assert state.share == pytest.approx(0.1)
    await bench.clock.advance(31)
    bench.selector.advance(bench.clock.monotonic())
    assert bench.condition("a") is Condition.HEALTHY
    assert state.share == 1.0


async def test_a_failed_probe_ejects_for_longer_each_time(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"), make_endpoint("b"))
    bench.fail("a", 5)
    for lasts_s in (30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300):
        await bench.clock.advance(lasts_s - 0.5)
        assert bench.ask(exclude=bench.all_but("a")) == Unavailable(Why.SATURATED)
        await bench.clock.advance(0.5)
        bench.fail("a", 1)


async def test_a_probe_whose_client_left_makes_way_for_the_next(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"), make_endpoint("b"))
    bench.fail("a", 5)
    await bench.clock.advance(30)
    bench.take(exclude=bench.all_but("a")).release(Outcome.CLIENT_LEFT)
    assert bench.condition("a") is Condition.HALF_OPEN
    bench.take(exclude=bench.all_but("a")).first_byte()
    assert bench.condition("a") is Condition.SLOW_START, "a first byte is proof enough"


def test_with_less_than_half_answering_every_ready_one_is_used(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(*(make_endpoint(id_) for id_ in "abc"), make_endpoint("d", draining=True))
    for id_ in "ab":
        bench.selector.set_answering(bench.selector.state(EndpointId(id_)), False)
    assert {bench.take(seed=seed / 8).endpoint.id for seed in range(8)} == {"a", "b", "c"}
    bench.selector.set_answering(bench.selector.state(EndpointId("a")), True)
    assert "b" not in {bench.take(seed=seed / 30).endpoint.id for seed in range(30)}


def test_an_endpoint_that_is_gone_is_not_used_even_as_the_last(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"))
    state = bench.selector.state(EndpointId("a"))
    bench.selector.set_answering(state, False)
    assert isinstance(bench.ask(), Reservation), "in doubt it is used"
    bench.selector.set_answering(state, False, is_gone=True)
    assert bench.ask() == Unavailable(Why.NO_ENDPOINT)
    bench.selector.set_answering(state, True)
    assert isinstance(bench.ask(), Reservation)
