"""Whom this node may give which weights, as the servers said. A store, used by several threads."""

from __future__ import annotations

import threading

from llmgw.clock import Clock
from llmgw.domain.ids import NodeId


class Admissions:
    """Nodes by what they may fetch here, each for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[tuple[NodeId, str], float] = {}
        self._changed = threading.Condition()

    def admit(self, node: NodeId, manifest: str, *, for_s: float) -> None:
        """Let a node have the files of this manifest, for so long from now on."""
        now = self._clock.monotonic()
        with self._changed:
            self._until = {key: end for key, end in self._until.items() if end > now}
            self._until[node, manifest] = now + for_s
            self._changed.notify_all()

    def wait_admitted(self, node: NodeId, manifest: str, limit_s: float) -> bool:
        """Whether it may; blocks for up to `limit_s`, since a node may be quicker than the word."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_admitted(node, manifest), limit_s)

    def _is_admitted(self, node: NodeId, manifest: str) -> bool:
        return self._until.get((node, manifest), float("-inf")) > self._clock.monotonic()
