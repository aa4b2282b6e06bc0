"""Which server a router believes."""

from __future__ import annotations

import pytest

from llmgw.adminapi.feed_messages import FeedSnapshot
from llmgw.domain.ids import Epoch
from llmgw.router.feed.choice import newest


def says(text: str) -> FeedSnapshot:
    """`a5L` is server a at epoch 5, leading; `!` after it: of another cluster."""
    return FeedSnapshot(
        cluster="other" if "!" in text else "ours",
        server=text[0],
        epoch=Epoch(int(text[1])),
        leading="L" in text,
        serial=1,
    )


@pytest.mark.parametrize(
    ("live", "applied", "chosen"),
    [
        ("", None, None),
        ("", "a5L", None),
        ("a5", None, "a"),
        ("a5 b5L", None, "b"),
        ("a6 b5L", None, "a"),
        ("a5L b6L", "a5L", "b"),
        ("a5L", "b6L", None),
        ("a6", "b6L", "a"),
        ("a6 b6", "b6", "b"),
        ("a6 c6 b6L", "c6", "b"),
        ("a9L!", "b6L", "a"),
        ("a9L! b6", "b6L", "b"),
        ("a9L! b5", "b6L", None),
    ],
)
def test_the_highest_epoch_then_the_leader_then_the_one_in_force(
    live: str, applied: str | None, chosen: str | None
) -> None:
    got = newest(map(says, live.split()), says(applied) if applied else None)
    assert (got.server if got else None) == chosen
