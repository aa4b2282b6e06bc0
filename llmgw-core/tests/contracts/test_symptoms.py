from __future__ import annotations

import pytest

from llmgw.contracts.symptoms import Symptom, explain, plain_line
from llmgw.domain.replicas import FailureCause
from llmgw.testing.launching import ended

TABLE = (
    Symptom(pattern="port .* taken", cause=FailureCause.PORT_IN_USE, says="the port is taken"),
    Symptom(pattern="error", cause=FailureCause.ENGINE_INTERNAL, says="it failed", hint="wait"),
)


def test_an_earlier_symptom_wins_over_a_later_one() -> None:
    failure = explain(ended(1, "error 1", "port 80 taken", "error 2"), TABLE)
    assert failure.cause is FailureCause.PORT_IN_USE
    assert failure.message == "the port is taken: port 80 taken"


def test_of_several_lines_the_last_is_quoted() -> None:
    assert explain(ended(1, "error 1", "error 2", "bye"), TABLE).message == "it failed: error 2"


def test_the_first_lines_of_output_count_too() -> None:
    """llama-server prints a bad option first and then its whole usage."""
    assert explain(ended(1, "usage", head=("an ERROR",)), TABLE).message == "it failed: an ERROR"


@pytest.mark.parametrize(
    ("exit_code", "was_ready", "cause", "words"),
    [
        (-9, True, FailureCause.KILLED, "SIGKILL"),
        (-15, False, FailureCause.KILLED, "SIGTERM"),
        (-4, False, FailureCause.ILLEGAL_INSTRUCTION, "SIGILL"),
        (-11, True, FailureCause.ENGINE_INTERNAL, "SIGSEGV"),
        (-63, True, FailureCause.KILLED, "63"),
        (127, False, FailureCause.ENGINE_MISSING, "127"),
        (0, True, FailureCause.ENGINE_INTERNAL, "nobody had asked"),
        (1, False, FailureCause.UNKNOWN, "exit code 1"),
        (1, True, FailureCause.ENGINE_INTERNAL, "exit code 1"),
        (None, False, FailureCause.START_TIMEOUT, "did not start"),
        (None, True, FailureCause.NO_PROGRESS, "stopped answering"),
    ],
)
def test_without_a_symptom_the_exit_code_speaks(
    exit_code: int | None, was_ready: bool, cause: FailureCause, words: str
) -> None:
    failure = explain(ended(exit_code, was_ready=was_ready), ())
    assert failure.cause is cause
    assert words in failure.message


def test_a_telling_line_is_quoted_before_the_last_one() -> None:
    failure = explain(ended(1, "ValueError: no", "cleaning up"), (), telling="Error:")
    assert failure.message.endswith("ValueError: no")


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("\x1b[31mred\x1b[0m\n", "red"),
        ("10%\r50%\r100%\r\n", "100%"),
        ("a\x00b\x07c", "abc"),
        ("\u009b31mx", "31mx"),
    ],
)
def test_lines_are_shown_without_escapes_and_redraws(line: str, plain: str) -> None:
    assert plain_line(line) == plain


def test_a_huge_line_is_shortened() -> None:
    assert len(explain(ended(1, "x" * 100_000), ()).message) == 400
