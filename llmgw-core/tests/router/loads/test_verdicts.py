"""Rows of answers and what they mean."""

from __future__ import annotations

import pytest

from llmgw.domain.loads import EngineLoad
from llmgw.router.loads.verdicts import Answers, Progress


@pytest.mark.parametrize(
    ("checks", "verdicts"),
    [
        ("+++", "+++"),
        ("--+--+--", "++++++++"),
        ("---", "++-"),
        ("---+-+-++", "++------+"),
        ("---++---", "++--+++-"),
    ],
)
def test_three_bad_and_two_good_in_a_row_change_the_verdict(checks: str, verdicts: str) -> None:
    answers = Answers(bad=3, good=2)
    seen = ["+" if answers.take(check == "+") else "-" for check in checks]
    assert "".join(seen) == verdicts


def test_two_connections_that_do_not_come_about_are_a_verdict() -> None:
    answers = Answers(bad=3, good=2)
    assert [answers.unreachable(), answers.take(True), answers.unreachable()] == [True] * 3
    assert not answers.unreachable()
    assert not answers.is_gone, "somebody may be listening there"


def test_a_refused_connection_needs_no_second_opinion() -> None:
    answers = Answers(bad=3, good=2)
    assert not answers.refused()
    assert [answers.take(False), answers.take(True), answers.is_gone] == [False, False, True]
    assert [answers.take(True), answers.is_gone] == [True, False]


def load(running: int | None, tokens: float | None) -> EngineLoad:
    return EngineLoad(running=running, waiting=0, generated_tokens=tokens)


def stuck(*readings: tuple[float, int | None, float | None], patience_s: float = 60) -> list[bool]:
    progress = Progress()
    return [
        progress.is_stuck(load(running, tokens), now, patience_s=patience_s)
        for now, running, tokens in readings
    ]


def test_requests_that_run_while_no_token_moves_are_stuck_after_a_minute() -> None:
    assert stuck((0, 1, 5), (59, 1, 5), (60, 2, 5), (61, 2, 6)) == [False, False, True, False]


def test_an_idle_engine_is_not_stuck_and_its_patience_begins_with_work() -> None:
    assert not any(stuck((0, 0, 5), (100, 0, 5), (101, 1, 5), (159, 1, 5)))
    assert stuck((0, 0, 5), (100, 0, 5), (101, 1, 5), (160, 1, 5))[-1]


def test_an_engine_that_says_nothing_is_never_judged() -> None:
    assert not any(stuck((0, 1, None), (500, 1, None)))
    assert not any(stuck((0, None, 5), (500, None, 5)))


def test_counters_that_fall_are_a_restart() -> None:
    progress = Progress()
    for now, tokens, restarted in ((0, 5, False), (1, 9, False), (2, 1, True), (3, 1, False)):
        progress.is_stuck(load(1, tokens), now, patience_s=60)
        assert progress.has_restarted is restarted
