"""Which of several servers to believe. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.adminapi.feed_messages import FeedSnapshot


def newest(live: Iterable[FeedSnapshot], applied: FeedSnapshot | None) -> FeedSnapshot | None:
    """Return the snapshot to apply; None to leave things as they are.

    live: the newest snapshot of each server whose feed is up. The highest epoch wins, then the
    leader, then the one in force: among followers of one epoch nothing is gained by changing.
    An epoch that is lower than the one in force is a deposed leader's, or of a follower that
    has not heard yet; the table in force is better than that. Another cluster's epochs cannot
    be compared, so it counts only where no server of ours is left.
    """
    snapshots = list(live)
    if applied is not None:
        ours = [item for item in snapshots if item.cluster == applied.cluster]
        if ours:
            snapshots = [item for item in ours if item.epoch >= applied.epoch]
    if not snapshots:
        return None
    in_force = applied.server if applied is not None else None
    return max(
        snapshots,
        key=lambda item: (item.epoch, item.leading, item.server == in_force, item.server),
    )
