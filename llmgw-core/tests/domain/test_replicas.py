"""What is said of a failure."""

from __future__ import annotations

from llmgw.domain.replicas import Failure, FailureCause


def test_a_cause_that_is_not_known_is_not_named() -> None:
    known = Failure(cause=FailureCause.BAD_OPTION, message="no such option")
    unknown = Failure(cause=FailureCause.UNKNOWN, message="ended with exit code 3")
    assert known.sentence == "bad_option: no such option"
    assert unknown.sentence == "ended with exit code 3"
