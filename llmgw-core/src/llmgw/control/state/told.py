"""What each node has been told in its present session, so that repeating has a pace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from llmgw.control.decide.commands import shard_of
from llmgw.control.decide.snapshot import NodeRecord, ReplicaRecord
from llmgw.domain.commands import Command, StopShard
from llmgw.domain.ids import NodeId, SessionId, ShardId

#: Shards that have been told something before it is seen which of them are over.
_TIDY_AT = 256


class Told:
    """Newest command per shard. A new session has been told nothing."""

    def __init__(self) -> None:
        self._newest: dict[ShardId, tuple[SessionId, Command, float]] = {}
        self._tidy_at = _TIDY_AT

    def due(
        self,
        commands: Sequence[Command],
        *,
        node: NodeRecord | None,
        now: float,
        resend_after_s: float,
    ) -> tuple[Command, ...]:
        """Return what the node should hear now: it can, and has not just heard it."""
        if node is None or node.session is None:
            return ()
        return tuple(
            command
            for command in commands
            if (told := self._newest.get(shard_of(command))) is None
            or told[0] != node.session
            or told[1] != command
            or now - told[2] >= resend_after_s
        )

    def note(self, session: SessionId, commands: Iterable[Command], *, now: float) -> None:
        """The session has taken these."""
        for command in commands:
            self._newest[shard_of(command)] = (session, command, now)

    def is_ended(self, record: ReplicaRecord, nodes: Mapping[NodeId, NodeRecord]) -> bool:
        """Return whether every node, in its present session, has been told to stop its shard."""
        for name, spec in record.shards:
            node = nodes.get(name)
            told = self._newest.get(spec.id)
            if node is None or node.session is None or told is None:
                return False
            if told[0] != node.session or not isinstance(told[1], StopShard):
                return False
        return True

    def tidy(self, records: Iterable[ReplicaRecord]) -> None:
        """Forget, now and then, what was told of other replicas than these, which are over."""
        if len(self._newest) < self._tidy_at:
            return
        shards = {spec.id for record in records for _, spec in record.shards}
        self._newest = {shard: told for shard, told in self._newest.items() if shard in shards}
        self._tidy_at = max(_TIDY_AT, 2 * len(self._newest))
