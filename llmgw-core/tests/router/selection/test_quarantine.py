"""A request may kill at most two replicas: who is a suspect, and where it may run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmgw.domain.endpoints import Endpoint
from llmgw.router.selection import Outcome, Reservation
from llmgw.router.selection.quarantine import Quarantine, fingerprint
from llmgw.router.selection.state import Death
from llmgw.router.table import Unavailable, Why

Bench = Any
MakeBench = Callable[..., Bench]
MakeEndpoint = Callable[..., Endpoint]

POISON = fingerprint("/v1/completions", b'{"prompt":"bad"}')


def test_one_death_makes_a_suspect_and_two_make_a_refusal() -> None:
    quarantine = Quarantine()
    assert quarantine.is_empty
    assert quarantine.died(POISON, Death(0.0)) == 1
    assert quarantine.is_suspect(POISON, 1.0)
    assert not quarantine.refuses(POISON, 1.0)
    assert quarantine.died(POISON, Death(2.0)) == 2
    assert quarantine.refuses(POISON, 3.0)


def test_copies_that_were_in_flight_in_one_death_count_once() -> None:
    quarantine = Quarantine()
    death = Death(0.0)
    assert [quarantine.died(POISON, death) for _ in range(3)] == [1, 1, 1]
    assert quarantine.is_suspect(POISON, 1.0)


def test_it_is_forgotten_ten_minutes_after_the_last_death() -> None:
    quarantine = Quarantine()
    quarantine.died(POISON, Death(0.0))
    quarantine.died(POISON, Death(100.0))
    assert quarantine.refuses(POISON, 699.0)
    assert not quarantine.refuses(POISON, 700.0)
    assert quarantine.is_empty


def test_those_that_never_come_again_are_forgotten_as_well() -> None:
    quarantine = Quarantine()
    death = Death(0.0)
    for number in range(100):
        quarantine.died(fingerprint("/", b"%d" % number), death)
    assert not quarantine.is_suspect(POISON, 600.0)
    assert quarantine.is_empty, "and no request need be hashed any more"


def test_a_flood_of_suspects_does_not_grow_without_end() -> None:
    quarantine = Quarantine()
    death = Death(0.0)
    for number in range(10_000):
        quarantine.died(fingerprint("/", b"%d" % number), death)
    assert not quarantine.is_suspect(fingerprint("/", b"0"), 0.0)
    assert quarantine.is_suspect(fingerprint("/", b"9999"), 0.0)


def test_path_length_beginning_and_end_make_the_fingerprint() -> None:
    big = b"x" * 300_000
    prints = {
        fingerprint("/a", big),
        fingerprint("/b", big),
        fingerprint("/a", big + b"x"),
        fingerprint("/a", b"y" + big[1:]),
        fingerprint("/a", big[:-1] + b"y"),
    }
    assert len(prints) == 5


def test_a_suspect_goes_alone_where_it_can(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench(default_profile="round_robin")
    bench.publish(make_endpoint("a"), make_endpoint("b"))
    bench.take(exclude=bench.all_but("a"))
    assert bench.take(suspect=b"1").endpoint.id == "b"
    assert isinstance(bench.ask(suspect=b"2"), Reservation), "none is idle: any will do"


def test_copies_of_a_suspect_go_where_one_runs_and_nowhere_else(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench(default_profile="round_robin")
    bench.publish(*(make_endpoint(id_, max_inflight=2) for id_ in "abc"))
    first = bench.take(suspect=b"1")
    second = bench.take(suspect=b"1")
    assert second.endpoint.id == first.endpoint.id
    assert bench.ask(suspect=b"1") == Unavailable(Why.HELD_BACK), "there is no room there"
    assert bench.take(suspect=b"2").endpoint.id != first.endpoint.id
    first.release(Outcome.RESET)
    assert bench.take(suspect=b"1").endpoint.id == first.endpoint.id
    assert bench.take().endpoint.id != first.endpoint.id, "others are served elsewhere"


def test_a_suspect_that_was_answered_is_none_any_more(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"), make_endpoint("b"))
    quarantine = bench.selector.quarantine
    for suspect, outcome in ((b"1", Outcome.OK), (b"2", Outcome.CLIENT_LEFT)):
        quarantine.died(suspect, Death(bench.clock.monotonic()))
        bench.take(suspect=suspect).release(outcome)
    now = bench.clock.monotonic()
    assert not quarantine.is_suspect(b"1", now)
    assert quarantine.is_suspect(b"2", now)


def test_a_suspect_gets_an_idle_endpoint_and_others_are_kept_away_from_it(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench(default_profile="round_robin")
    bench.publish(*(make_endpoint(id_) for id_ in "abc"))
    busy = bench.take(exclude=bench.all_but("a"))
    suspect = bench.take(suspect=b"1")
    assert suspect.endpoint.id != "a"
    assert "kept alone" in suspect.because
    others = [bench.take() for _ in range(6)]
    assert suspect.endpoint.id not in {one.endpoint.id for one in others}
    suspect.release(Outcome.OK)
    assert suspect.endpoint.id in {bench.take().endpoint.id for _ in range(6)}
    busy.release(Outcome.OK)


def test_with_nothing_else_free_a_suspect_has_company(
    make_bench: MakeBench, make_endpoint: MakeEndpoint
) -> None:
    bench = make_bench()
    bench.publish(make_endpoint("a"))
    assert bench.take().endpoint.id == "a"
    assert bench.take(suspect=b"1").endpoint.id == "a"
    assert bench.take().endpoint.id == "a"
