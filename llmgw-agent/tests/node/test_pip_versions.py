"""Weights come out of an index with every pip that Python brings along."""

from __future__ import annotations

import pytest

from llmgw_agent.node.weights.index import progress_bar


@pytest.mark.parametrize(
    ("version", "bar"),
    [
        ("pip 23.2.1 from /opt/venv/lib/python3.11/site-packages/pip (python 3.11)", "off"),
        ("pip 24.0 from /opt/venv/lib/python3.12/site-packages/pip (python 3.12)", "off"),
        ("pip 24.1 from /x (python 3.13)", "raw"),
        ("pip 26.2 from /x (python 3.14)", "raw"),
        ("", "off"),
    ],
)
def test_an_older_pip_is_asked_for_nothing_that_it_does_not_know(version: str, bar: str) -> None:
    assert progress_bar(version) == bar
