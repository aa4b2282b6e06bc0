"""Ejection, panic and slow start as tables of cases."""

from __future__ import annotations

import pytest

from llmgw.router.selection.rules import ejection_s, is_panic, may_eject, ramped


@pytest.mark.parametrize(("count", "lasts_s"), [(1, 30), (2, 60), (9, 270), (10, 300), (50, 300)])
def test_each_ejection_is_longer_up_to_the_cap(count: int, lasts_s: float) -> None:
    assert ejection_s(count, base_s=30, cap_s=300) == lasts_s


@pytest.mark.parametrize(
    ("ready", "ejected", "may"),
    [
        (1, 0, False),
        (2, 0, True),
        (2, 1, False),
        (3, 0, True),
        (3, 1, False),
        (4, 1, True),
        (4, 2, False),
    ],
)
def test_never_the_last_and_never_more_than_half_are_ejected(
    ready: int, ejected: int, may: bool
) -> None:
    assert may_eject(ready=ready, ejected=ejected, max_share=0.5) is may


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_last_one_stays_whatever_share_is_allowed(share: float) -> None:
    assert not may_eject(ready=1, ejected=0, max_share=share)
    assert not may_eject(ready=3, ejected=2, max_share=share)


@pytest.mark.parametrize(
    ("ready", "healthy", "panic"),
    [
        (0, 0, False),
        (1, 1, False),
        (1, 0, True),
        (2, 1, False),
        (3, 1, True),
        (10, 4, True),
        (10, 5, False),
    ],
)
def test_panic_is_less_than_half_healthy(ready: int, healthy: int, panic: bool) -> None:
    assert is_panic(ready=ready, healthy=healthy, panic_below=0.5) is panic


def test_even_with_panic_off_no_healthy_one_means_all_ready_ones() -> None:
    assert is_panic(ready=2, healthy=0, panic_below=0.0)


@pytest.mark.parametrize(("since_s", "share"), [(0, 0.2), (15, 1.1), (30, 2.0), (99, 2.0)])
def test_slow_start_rises_from_a_tenth_to_the_whole_weight(since_s: float, share: float) -> None:
    assert ramped(2.0, since_s=since_s, slow_start_s=30) == pytest.approx(share)


def test_without_slow_start_the_weight_counts_at_once() -> None:
    assert ramped(2.0, since_s=0, slow_start_s=0) == 2.0
