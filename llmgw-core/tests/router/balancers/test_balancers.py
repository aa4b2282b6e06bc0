"""Each built-in way of choosing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from llmgw.contracts.balancing import Balancer, HasIndex
from llmgw.domain.loads import EngineLoad
from llmgw.errors import ConfigError
from llmgw.router.balancers import llmgw_balancers

Make = Callable[..., Any]
NAMES = [factory.name for factory in llmgw_balancers()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0.0, 0.49, 0.999999999999])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_answer_is_always_one_of_the_usable(
    name: str, seed: float, count: int, make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer(name)
    usable = [make_load(str(number), number) for number in range(count)]
    for session in (None, "", "s", "\udcff"):
        request = make_request(seed=seed, session_key=session, prompt=b"x" * 5000, body_bytes=5000)
        assert balancer.choose(request, usable) in range(count)


@pytest.mark.parametrize("name", NAMES)
def test_forgetting_what_was_never_known_is_fine(name: str, make_balancer: Make) -> None:
    make_balancer(name).forget("nobody")


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_names_those_that_there_are(name: str, make_balancer: Make) -> None:
    with pytest.raises(ConfigError, match=rf"options.colour: unknown option; {name} has: "):
        make_balancer(name, colour="red")


@pytest.mark.parametrize("name", ["least_outstanding", "load", "prefix", "session"])
def test_the_quietest_gets_it_where_nothing_else_is_known(
    name: str, make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    usable = [make_load("a", 3), make_load("b", 1), make_load("c", 2)]
    chosen = {
        make_balancer(name).choose(make_request(seed=seed / 10), usable) for seed in range(10)
    }
    assert chosen == {1}


def test_ties_are_spread(make_balancer: Make, make_load: Make, make_request: Make) -> None:
    usable = [make_load(id_) for id_ in "abcd"]
    chosen = Counter(
        make_balancer("least_outstanding").choose(make_request(seed=seed / 100), usable)
        for seed in range(100)
    )
    assert chosen == {0: 25, 1: 25, 2: 25, 3: 25}


def test_round_robin_gives_each_its_share_smoothly(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("round_robin")
    usable = [make_load("a", share=3.0), make_load("b"), make_load("c")]
    turns = "".join("abc"[balancer.choose(make_request(), usable)] for _ in range(10))
    assert Counter(turns) == {"a": 6, "b": 2, "c": 2}
    assert "aaa" not in turns


def test_round_robin_goes_on_where_it_was_when_the_list_changes(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("round_robin")
    a, b, c = (make_load(id_) for id_ in "abc")
    turns: Counter[str] = Counter()
    for number in range(120):
        usable = [a, b, c] if number % 2 else [a, b]  # c flaps
        turns[usable[balancer.choose(make_request(), usable)].endpoint.id] += 1
    assert turns["c"] == 20, "a third of the turns in which it could be chosen"
    assert min(turns["a"], turns["b"]) >= 40, turns


def test_power_of_two_takes_the_better_of_two_different_ones(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("power_of_two")
    usable = [make_load("a", 9), make_load("b", 0), make_load("c", 9)]
    chosen = Counter(balancer.choose(make_request(seed=seed / 300), usable) for seed in range(300))
    assert chosen[1] == pytest.approx(200, abs=2), "b is among two of three pairs"


def test_a_session_stays_and_only_those_of_a_lost_endpoint_move(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    usable = [make_load(id_, random.randrange(9)) for id_ in "abcde"]
    keys = [f"user-{number}" for number in range(500)]

    def places(balancer: Balancer, loads: list[Any]) -> dict[str, str]:
        return {
            key: loads[balancer.choose(make_request(session_key=key), loads)].endpoint.id
            for key in keys
        }

    before = places(make_balancer("session"), usable)
    assert places(make_balancer("session"), usable[::-1]) == before, "another router agrees"
    after = places(make_balancer("session"), usable[1:])
    assert all(after[key] == place for key, place in before.items() if place != "a")
    assert min(Counter(before.values()).values()) > 60


def test_sessions_follow_the_weights(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("session")
    usable = [make_load("a", share=3.0), make_load("b")]
    chosen = Counter(
        balancer.choose(make_request(session_key=str(number)), usable) for number in range(4000)
    )
    assert chosen[0] / 4000 == pytest.approx(0.75, abs=0.03)


def reading(**given: Any) -> EngineLoad:
    return EngineLoad(**{"running": 0, "waiting": 0, **given})


def test_load_goes_where_the_queue_is_shortest(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    usable = [
        make_load("a", engine_load=reading(waiting=4)),
        make_load("b", 9, engine_load=reading(running=9)),
        make_load("c", engine_load=reading(waiting=2)),
    ]
    assert make_balancer("load").choose(make_request(), usable) == 1


def test_load_avoids_a_full_cache(make_balancer: Make, make_load: Make, make_request: Make) -> None:
    usable = [
        make_load("a", engine_load=reading(kv_used=1.0)),
        make_load("b", engine_load=reading(kv_used=0.2, running=3)),
    ]
    assert make_balancer("load").choose(make_request(), usable) == 1


def test_load_credits_what_it_sent_until_the_next_reading(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("load")
    usable = [make_load(id_, engine_load=reading()) for id_ in "ab"]
    usable.append(make_load("c", engine_load=reading(waiting=1)))
    chosen = Counter(balancer.choose(make_request(body_bytes=4096), usable) for _ in range(30))
    assert all(9 <= chosen[place] <= 11 for place in range(3)), chosen
    usable[0].engine_load = reading()
    assert balancer.choose(make_request(), usable) == 0, "a new reading cancels the credit"


def test_load_judges_an_endpoint_without_a_reading_by_own_counts(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("load")
    silent, said = make_load("a", 40, tokens_in_flight=9000), make_load("b", engine_load=reading())
    assert balancer.choose(make_request(), [silent, said]) == 1
    said.engine_load = reading(waiting=90)
    assert balancer.choose(make_request(), [silent, said]) == 0


def prompt(head: str, tail: str) -> bytes:
    return (head * 3000)[:3000].encode() + (tail * 1000)[:1000].encode()


def test_equal_beginnings_go_to_the_same_endpoint(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("prefix")
    usable = [make_load(id_) for id_ in "abcd"]
    for head in ("system one. ", "system two. ", "system three. "):
        chosen = {
            balancer.choose(make_request(prompt=prompt(head, tail), seed=seed), usable)
            for tail, seed in (("x", 0.1), ("y", 0.4), ("z", 0.9))
        }
        assert len(chosen) == 1


def test_affinity_ends_where_the_load_would_be_uneven(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("prefix")
    a, b = make_load("a"), make_load("b", 1)
    assert balancer.choose(make_request(prompt=prompt("s", "x")), [a, b]) == 0
    a.in_flight = 8
    assert balancer.choose(make_request(prompt=prompt("s", "y")), [a, b]) == 1
    a.in_flight = 2
    assert balancer.choose(make_request(prompt=prompt("s", "z")), [a, b]) == 1, "both know it now"


def test_a_great_imbalance_ends_affinity_for_all(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("prefix", load_bound=100.0)
    a, b, c = make_load("a"), make_load("b", 1), make_load("c", 1)
    assert balancer.choose(make_request(prompt=prompt("s", "x")), [a, b, c]) == 0
    a.in_flight, b.in_flight, c.in_flight = 60, 0, 130
    assert balancer.choose(make_request(prompt=prompt("s", "y")), [a, b, c]) == 1


def test_a_miss_goes_where_it_is_quietest_and_not_where_the_index_is_smallest(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("prefix")
    a, b = make_load("a"), make_load("b", 1)
    for number in range(20):
        balancer.choose(make_request(prompt=prompt(f"p{number}", "x")), [a, b])
    assert balancer.choose(make_request(prompt=prompt("new", "x")), [a, b]) == 0


def test_a_short_match_is_no_match(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("prefix")
    a, b = make_load("a"), make_load("b", 1)
    head = b"h" * 512
    balancer.choose(make_request(prompt=head + b"x" * 3500), [a, b])
    a.in_flight = 2
    assert balancer.choose(make_request(prompt=head + b"y" * 3500), [a, b]) == 1


def test_a_restart_empties_what_was_known_of_the_endpoint(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("prefix")
    a, b = make_load("a"), make_load("b", 1)
    balancer.choose(make_request(prompt=prompt("s", "x")), [a, b])
    a.in_flight = 2
    assert balancer.choose(make_request(prompt=prompt("s", "y")), [a, b]) == 0
    balancer.forget("a")
    assert balancer.choose(make_request(prompt=prompt("s", "z")), [a, b]) == 1


def test_the_index_is_capped_and_says_how_large_it_is(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer: Balancer = make_balancer("prefix", index_blocks=1000)
    usable = [make_load("a"), make_load("b")]
    for number in range(2000):
        balancer.choose(make_request(prompt=prompt(f"{number}.", "x")), usable)
        assert isinstance(balancer, HasIndex)
        assert balancer.index_size <= 1000 + 16
    assert isinstance(balancer, HasIndex)
    assert balancer.index_size >= 500


def test_what_is_used_stays_in_the_index(
    make_balancer: Make, make_load: Make, make_request: Make
) -> None:
    balancer = make_balancer("prefix", index_blocks=400)
    usable = [make_load("a"), make_load("b", 1)]
    balancer.choose(make_request(prompt=prompt("hot", "x")), usable)
    usable[0].in_flight = 2
    for number in range(500):
        balancer.choose(make_request(prompt=prompt(f"{number}.", "x")), usable)
        assert balancer.choose(make_request(prompt=prompt("hot", "x")), usable) == 0
