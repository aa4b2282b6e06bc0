"""Who goes, who waits, who is refused and with what words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmgw.domain.endpoints import ModelState

MakeHall = Callable[..., Any]


def test_with_a_free_slot_a_request_goes_at_once(make_hall: MakeHall) -> None:
    hall = make_hall()
    hall.free()
    assert hall.ask().fate == "ready"
    assert hall.admission.queued() == {}


def test_those_who_wait_are_served_in_order_as_slots_become_free(make_hall: MakeHall) -> None:
    hall = make_hall()
    for name in "abc":
        assert hall.ask(name).fate == "waits"
    assert hall.admission.queued() == {"m": 3}
    hall.free(2)
    assert hall.served == ["a", "b"]
    hall.free()
    assert hall.served == ["a", "b", "c"]
    assert hall.admission.queued() == {}


def test_a_newcomer_does_not_overtake_those_who_wait(make_hall: MakeHall) -> None:
    hall = make_hall()
    hall.ask("first")
    hall.slots.free["m"] = 1  # free, but nobody has announced it yet
    assert hall.ask("second").fate == "waits"
    hall.admission.room(["m"])
    assert hall.served == ["first"]


def test_a_full_line_is_saturation_with_a_time_to_come_back(make_hall: MakeHall) -> None:
    hall = make_hall(queue={"length": 2})
    hall.ask()
    hall.ask()
    refused = hall.ask()
    (error,) = refused.errors
    assert (error.status, error.code, error.kind) == (429, "saturated", "rate_limit_error")
    assert error.retry_after_s >= 1
    assert error.retry_after_s == int(error.retry_after_s)


def test_a_higher_class_goes_first_and_takes_the_newest_place_of_the_lowest(
    make_hall: MakeHall,
) -> None:
    hall = make_hall(queue={"length": 3})
    low_1, low_2 = hall.ask("low 1", priority="low"), hall.ask("low 2", priority="low")
    hall.ask("normal")
    assert hall.ask("high", priority="high").fate == "waits"
    assert (low_1.fate, low_2.fate) == ("waits", "saturated")
    assert hall.ask("another low", priority="low").fate == "saturated"
    hall.free(3)
    assert hall.served == ["high", "normal", "low 1"]


def test_a_higher_class_may_overtake_a_lower_one_that_waits(make_hall: MakeHall) -> None:
    hall = make_hall()
    hall.ask("low", priority="low")
    hall.slots.free["m"] = 1
    assert hall.ask("high", priority="high").fate == "ready"


def test_an_unknown_class_is_the_usual_one(make_hall: MakeHall) -> None:
    admission = make_hall().admission
    assert admission.priority("urgent!") == admission.priority(None) == admission.priority("normal")


def test_a_key_with_one_request_does_not_wait_behind_a_hundred_of_another(
    make_hall: MakeHall,
) -> None:
    hall = make_hall()
    for number in range(100):
        hall.ask(f"greedy {number}", key="greedy")
    hall.ask("modest", key="modest")
    hall.free(2)
    assert "modest" in hall.served


def test_large_prompts_use_up_a_keys_share(make_hall: MakeHall) -> None:
    hall = make_hall()
    for number in range(10):
        hall.ask(f"large {number}", key="a", body_bytes=9 * 4096)
        for small in range(10):
            hall.ask(f"small {number}.{small}", key="b")
    hall.free(12)
    assert sum(name.startswith("large") for name in hall.served) == 2


def test_a_key_that_asks_again_at_once_does_not_starve_the_others(make_hall: MakeHall) -> None:
    hall = make_hall()
    for number in range(20):
        hall.ask(f"a{number}", key="a")
    hall.ask("b", key="b", then=lambda: None)
    for _ in range(20):
        hall.free()
        if hall.served[-1] == "b":
            hall.ask("b", key="b")
    assert 8 <= hall.served.count("b") <= 12


async def test_the_wait_for_a_slot_ends(make_hall: MakeHall) -> None:
    hall = make_hall()
    early = hall.ask()
    await hall.wait(15)
    late = hall.ask()
    await hall.wait(15)
    assert (early.fate, late.fate) == ("saturated", "waits")
    assert "within 30 s" in early.errors[0].message


@pytest.mark.parametrize("state", [ModelState.ASLEEP, ModelState.WAKING])
async def test_a_model_that_wakes_is_waited_for_longer(
    make_hall: MakeHall, state: ModelState
) -> None:
    hall = make_hall()
    hall.publish("m", state, free=None)
    asked = hall.ask()
    await hall.wait(299)
    assert asked.fate == "waits"
    await hall.wait(1)
    (error,) = asked.errors
    assert (error.status, error.code) == (503, "no_endpoint")
    assert error.retry_after_s >= 1


async def test_an_engine_that_is_being_restarted_is_waited_for(make_hall: MakeHall) -> None:
    hall = make_hall()
    hall.publish("m", ModelState.SERVING, free=None)
    early = hall.ask()
    await hall.wait(20)
    late = hall.ask()
    hall.free(2)
    assert (early.fate, late.fate) == ("ready", "ready")


async def test_one_that_stays_away_is_not_waited_for_by_each_request_anew(
    make_hall: MakeHall,
) -> None:
    hall = make_hall()
    hall.publish("m", ModelState.SERVING, free=None)
    early = hall.ask()
    await hall.wait(29)
    late = hall.ask()
    assert (early.fate, late.fate) == ("waits", "waits")
    await hall.wait(1)
    assert (early.fate, late.fate) == ("no_endpoint", "no_endpoint")
    await hall.wait(600)
    assert hall.ask().fate == "no_endpoint", "at once"
    hall.free()
    assert hall.ask().fate == "ready"
    hall.publish("m", ModelState.SERVING, free=None)
    assert hall.ask().fate == "waits", "a new outage"


async def test_no_wait_at_all_is_still_saturation_where_engines_are_up(
    make_hall: MakeHall,
) -> None:
    hall = make_hall(deadlines={"queue": 0})
    asked = hall.ask()
    await hall.wait(0)
    assert asked.fate == "saturated"


async def test_many_who_wait_cause_one_wake(make_hall: MakeHall) -> None:
    hall = make_hall()
    hall.publish("m", ModelState.ASLEEP, free=None)
    asked = [hall.ask() for _ in range(50)]
    await hall.wait(5)
    assert hall.nudged == ["m"]
    hall.publish("m", ModelState.WAKING, free=None)
    hall.publish("m", ModelState.SERVING, free=50)
    assert {item.fate for item in asked} == {"ready"}
    assert hall.nudged == ["m"]


async def test_a_wake_that_was_not_heard_is_asked_for_again(make_hall: MakeHall) -> None:
    hall = make_hall()
    hall.publish("m", ModelState.ASLEEP, free=None)
    hall.ask()
    await hall.wait(29)
    assert hall.nudged == ["m"]
    await hall.wait(1)
    assert hall.nudged == ["m", "m"]


async def test_the_wait_for_a_slot_begins_when_the_model_is_awake(make_hall: MakeHall) -> None:
    hall = make_hall()
    hall.publish("m", ModelState.ASLEEP, free=None)
    asked = hall.ask()
    await hall.wait(200)
    hall.publish("m", ModelState.SERVING, free=0)
    await hall.wait(29)
    assert asked.fate == "waits"
    await hall.wait(1)
    assert asked.fate == "saturated"


def test_what_cannot_be_placed_is_refused_at_once_with_the_reason(make_hall: MakeHall) -> None:
    hall = make_hall()
    hall.publish("m", ModelState.UNPLACEABLE, free=None, refusal="needs 2 devices, gpu-01 has 1")
    (error,) = hall.ask().errors
    assert (error.status, error.code) == (503, "unplaceable")
    assert "needs 2 devices, gpu-01 has 1" in error.message
    assert error.retry_after_s >= 1


def test_those_who_wait_are_told_when_the_model_turns_out_to_be_unplaceable(
    make_hall: MakeHall,
) -> None:
    hall = make_hall()
    hall.publish("m", ModelState.WAKING, free=None)
    asked = hall.ask()
    hall.publish("m", ModelState.UNPLACEABLE, free=None, refusal="no room")
    assert asked.fate == "unplaceable"


def test_a_model_that_is_withdrawn_ends_the_wait(make_hall: MakeHall) -> None:
    hall = make_hall()
    asked = hall.ask()
    hall.withdraw("m")
    assert asked.fate == "model_not_found"
    assert asked.errors[0].status == 404


def test_without_a_line_a_cold_model_is_told_apart_from_a_full_one(make_hall: MakeHall) -> None:
    hall = make_hall(queue={"length": 0})
    assert hall.ask().errors[0].status == 429
    hall.publish("m", ModelState.SERVING, free=None)
    assert hall.ask().errors[0].status == 503


def test_who_leaves_is_not_called_back(make_hall: MakeHall) -> None:
    hall = make_hall(queue={"length": 2})
    gone, stays = hall.ask("gone"), hall.ask("stays")
    gone.ticket.leave()
    gone.ticket.leave()
    assert hall.admission.queued() == {"m": 1}
    assert hall.ask("new").fate == "waits", "the place is free again"
    hall.free(2)
    assert hall.served == ["stays", "new"]
    stays.ticket.leave()
    assert hall.admission.queued() == {}


def test_who_leaves_pays_nothing_of_the_keys_share(make_hall: MakeHall) -> None:
    hall = make_hall()
    for _ in range(50):
        hall.ask(key="a").ticket.leave()
    for number in range(4):
        hall.ask(f"b{number}", key="b")
    hall.ask("a", key="a")
    hall.free(2)
    assert "a" in hall.served


def test_a_slot_given_back_from_within_a_callback_serves_the_next(make_hall: MakeHall) -> None:
    """An order kept even so: recursion would serve the later ones first."""
    hall = make_hall()
    for name in "abcd":
        hall.ask(name, then=hall.free)
    hall.free()
    assert hall.served == ["a", "b", "c", "d"]
    assert hall.slots.free["m"] == 1


def test_a_full_pool_does_not_hold_up_those_for_another(make_hall: MakeHall) -> None:
    hall = make_hall()
    hall.ask("full", profile="full")
    hall.ask("free", profile="free")
    hall.slots.free_by_profile["free"] = 1
    hall.admission.room(["m"])
    assert hall.served == ["free"]


def test_room_that_a_callback_makes_for_another_pool_is_not_missed(make_hall: MakeHall) -> None:
    hall = make_hall()

    def make_room() -> None:
        hall.slots.free_by_profile["first"] = 1
        hall.admission.room(["m"])

    hall.ask("first", profile="first")
    hall.ask("second", profile="second", then=make_room)
    hall.slots.free_by_profile["second"] = 1
    hall.admission.room(["m"])
    assert hall.served == ["second", "first"]


async def test_a_wake_is_measured_by_who_waited_for_all_of_it(make_hall: MakeHall) -> None:
    hall = make_hall(deadlines={"wake_wait": 100})
    hall.publish("m", ModelState.ASLEEP, free=None)
    hall.ask()
    await hall.wait(50)
    hall.ask()
    await hall.wait(10)
    hall.publish("m", ModelState.SERVING, free=2)
    hall.publish("m", ModelState.ASLEEP, free=None)
    late = hall.ask()
    await hall.wait(100)
    assert late.errors[0].retry_after_s == 60


async def test_retry_after_follows_the_measured_pace(make_hall: MakeHall) -> None:
    hall = make_hall(queue={"length": 9})
    for _ in range(9):
        hall.ask()
    for _ in range(5):
        await hall.clock.advance(4)
        hall.free()
        hall.ask()
    (error,) = hall.ask().errors
    assert error.retry_after_s == 40, "ten at four seconds each"


async def test_retry_after_of_a_cold_model_is_the_expected_wake(make_hall: MakeHall) -> None:
    hall = make_hall(deadlines={"wake_wait": 5}, queue={"length": 9})
    hall.publish("m", ModelState.ASLEEP, free=None, expected_wait_s=41.2)
    asked = hall.ask()
    await hall.wait(5)
    assert asked.errors[0].retry_after_s == 42


async def test_models_do_not_wait_for_each_other(make_hall: MakeHall) -> None:
    """One hung engine must not hold the rest."""
    hall = make_hall()
    hall.publish("n", ModelState.SERVING, free=1)
    for _ in range(500):
        hall.ask()
    assert hall.ask(model="n").fate == "ready"


def test_the_end_of_the_router_is_told_to_everybody(make_hall: MakeHall) -> None:
    hall = make_hall()
    asked = [hall.ask() for _ in range(3)]
    hall.admission.refuse_all()
    assert [item.fate for item in asked] == ["shutting_down"] * 3
    assert hall.admission.queued() == {}


def test_who_waits_under_a_revoked_key_is_refused_and_the_others_are_not(
    make_hall: MakeHall,
) -> None:
    hall = make_hall()
    revoked, kept = hall.ask("a", key="k1"), hall.ask("b", key="k2")
    hall.revoked.add("k1")
    hall.admission.check_keys()
    assert revoked.errors[0].status == 401
    assert kept.fate == "waits"
    assert hall.admission.queued() == {"m": 1}
    hall.free()
    assert hall.served == ["b"]


def test_a_key_that_has_expired_in_the_line_gets_no_slot(make_hall: MakeHall) -> None:
    hall = make_hall()
    expired, kept = hall.ask("a", key="k1"), hall.ask("b", key="k2")
    hall.revoked.add("k1")
    hall.free()
    assert expired.fate == "invalid_api_key"
    assert kept.fate == "ready"
