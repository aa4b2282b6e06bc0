from __future__ import annotations

import pytest

from llmgw.contracts.engine import MetricsUnreadable
from llmgw.contracts.exposition import Exposition

PAGE = """\
# HELP engine:running Requests being computed
# TYPE engine:running gauge
engine:running{rank="0",model="a b, {c}"} 3.0
engine:running{rank="1",model="a \\"b\\""} 4 1700000000000
engine:running_by_reason{reason="x"} 9
engine:old 0.25
engine:nan NaN
engine:inf +Inf
engine:negative -1
engine:text ???
"""


def test_a_metric_is_summed_over_its_series() -> None:
    assert Exposition(PAGE, "engine:running").total("engine:running") == 7.0


def test_labels_choose_among_series() -> None:
    assert Exposition(PAGE, "engine:running").total("engine:running", rank="1") == 4.0


def test_a_fraction_is_averaged_over_its_series() -> None:
    page = 'engine:used{rank="0"} 0.25\nengine:used{rank="1"} 0.75\n'
    assert Exposition(page, "engine:used").fraction("engine:used") == 0.5


def test_a_fraction_above_one_is_absent() -> None:
    """A gauge in percent under a fraction's name would make every engine look full."""
    assert Exposition(PAGE, "engine:running").fraction("engine:running") is None


def test_an_older_name_is_read_where_the_newer_is_absent() -> None:
    assert Exposition(PAGE, "engine:new", "engine:old").total("engine:new", "engine:old") == 0.25


@pytest.mark.parametrize("name", ["nan", "inf", "negative", "text", "absent"])
def test_what_is_no_count_is_absent_and_not_zero(name: str) -> None:
    seen = Exposition(PAGE, f"engine:{name}")
    assert seen.total(f"engine:{name}") is None
    with pytest.raises(MetricsUnreadable, match=f"engine:{name}"):
        seen.count(f"engine:{name}")


def test_a_last_line_without_its_end_is_left_out() -> None:
    """`engine:running 35` that was cut off reads `engine:running 3`."""
    seen = Exposition("engine:waiting 2\nengine:running 3", "engine:waiting", "engine:running")
    assert seen.total("engine:waiting") == 2.0
    assert seen.total("engine:running") is None
