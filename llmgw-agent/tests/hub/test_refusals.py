"""A refusal is said once, and then once a minute."""

from __future__ import annotations

import pytest

from llmgw_agent.hub.refusals import Refusals


def _note(refusals: Refusals, reason: str, now: float) -> None:
    refusals.note(code="revoked", reason=reason, peer="ipv4:10.0.0.5:1", now=now)


def test_the_same_refusal_is_said_again_after_a_minute_with_its_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Refusals()
    for now in (0.0, 1.0, 59.0, 60.0, 61.0):
        _note(refusals, "stolen", now)
    said = [record.__dict__["fields"]["times"] for record in caplog.records]
    assert said == [1, 3]


def test_different_refusals_are_each_said(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for number in range(3000):
        _note(refusals, f"reason {number}", 0.0)
    assert len(caplog.records) == 3000
