"""Long work on a node, seen from a shell."""

from __future__ import annotations

import threading

import pytest

from llmgw.ctl.waiting import wait_for
from llmgw.errors import PermanentError, TransientError


def test_how_far_it_is_goes_to_stderr_each_word_once(capsys: pytest.CaptureFixture[str]) -> None:
    done = threading.Event()
    words = iter(["", "1 of 3 GiB", "1 of 3 GiB", "2 of 3 GiB"])

    def look() -> str:
        word = next(words, None)
        if word is None:
            done.set()
        return word or ""

    def work() -> str:
        done.wait(5)
        return "the reply"

    assert wait_for(work, look, every_s=0.01) == "the reply"
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == ["1 of 3 GiB", "2 of 3 GiB"]


@pytest.mark.parametrize("error", [PermanentError("no such node"), TimeoutError("slow")])
def test_what_the_work_raises_is_raised_here(error: Exception) -> None:
    def work() -> str:
        raise error

    with pytest.raises(type(error), match=str(error)):
        wait_for(work, lambda: "", every_s=0.01)


def test_a_look_that_fails_ends_nothing() -> None:
    seen = threading.Event()

    def look() -> str:
        seen.set()
        raise TransientError("the server is busy")

    def work() -> str:
        seen.wait(5)
        return "done"

    assert wait_for(work, look, every_s=0.01) == "done"
