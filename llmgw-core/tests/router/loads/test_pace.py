"""Looks never begin all at once."""

from __future__ import annotations

import pytest

from llmgw.router.loads.pace import Pace


def test_turns_that_are_asked_for_at_once_lie_apart() -> None:
    pace = Pace()
    delays = [pace.delay_s(10.0) for _ in range(1000)]
    assert delays[0] == 0.0
    assert delays == sorted(delays)
    assert delays[-1] == pytest.approx(999 * 0.004)


def test_turns_that_nobody_took_are_not_saved_up() -> None:
    pace = Pace()
    pace.delay_s(0.0)
    assert pace.delay_s(100.0) == 0.0
    assert pace.delay_s(100.0) == pytest.approx(0.004)
