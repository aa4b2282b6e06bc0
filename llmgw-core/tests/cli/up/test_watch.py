"""When there is still hope for a model, and when there is none."""

from __future__ import annotations

import pytest

from llmgw.adminapi.fleet import ModelReply
from llmgw.cli.up.watch import Progress


def progress(state: str, *, connected: bool = True, **fields: int) -> Progress:
    model = ModelReply.model_validate({"name": "m", "state": state, "wanted_min": 1, **fields})
    return Progress(server_up=True, agent_connected=connected, models=(model,))


@pytest.mark.parametrize(
    ("seen", "stands_still"),
    [
        (progress("unplaceable"), True),
        (progress("waking"), False),
        (progress("serving", ready=1), False),
        (progress("unplaceable", connected=False), False),  # the agent may find it a place
        (progress("unplaceable", wanted_min=0), False),  # nobody has asked for it
        (Progress(), False),
    ],
)
def test_only_a_model_without_a_way_stands_still(seen: Progress, *, stands_still: bool) -> None:
    assert seen.stands_still is stands_still
