"""The live sessions by node, and the way into each."""

from __future__ import annotations

from collections.abc import Iterator

import anyio

from llmgw.domain.ids import NodeId, SessionId
from llmgw.domain.nodes import NodeInventory
from llmgw.errors import NodeUnreachable
from llmgw_agent.wire.codec import encode_down
from llmgw_agent.wire.frames import DownFrame, Goodbye
from llmgw_agent.wire.lanes import Lanes, LanesFull


class Session:
    """One node's stream, as others may use it."""

    def __init__(self, *, id: SessionId, inventory: NodeInventory, lanes: Lanes) -> None:  # noqa: A002 # the field's name everywhere
        self.id = id
        self.inventory = inventory  #: as last told
        self._lanes = lanes
        self.goodbye: Goodbye | None = None
        self.ended = anyio.Event()

    @property
    def node(self) -> NodeId:
        return self.inventory.node

    @property
    def uid(self) -> str:
        return self.inventory.agent_uid

    @property
    def is_live(self) -> bool:
        return not self.ended.is_set()

    def send(self, frame: DownFrame) -> None:
        """Queue one frame. Raises NodeUnreachable if the session has ended or nobody reads."""
        if not self.is_live:
            raise NodeUnreachable(f"node {self.node}: its session has ended")
        try:
            self._lanes.put_nowait(encode_down(frame))
        except LanesFull:
            raise NodeUnreachable(f"node {self.node}: its agent reads nothing") from None

    def end(self, goodbye: Goodbye | None = None) -> None:
        """End it, saying why where the peer still listens. The first reason stays."""
        if self.is_live:
            self.goodbye = goodbye
            self.ended.set()


class Sessions:
    """At most one live session per node."""

    def __init__(self) -> None:
        self._by_node: dict[NodeId, Session] = {}

    def __len__(self) -> int:
        return len(self._by_node)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._by_node.values()))

    def of(self, node: NodeId) -> Session | None:
        return self._by_node.get(node)

    def reach(self, node: NodeId) -> Session:
        """Return the live session of a node. Raises NodeUnreachable."""
        session = self._by_node.get(node)
        if session is None:
            raise NodeUnreachable(f"node {node}: no agent is connected")
        return session

    def put(self, session: Session) -> None:
        """Make it its node's session; the caller has ended the one before."""
        self._by_node[session.node] = session

    def remove(self, session: Session) -> bool:
        """Forget it; return whether it was its node's present one."""
        if self._by_node.get(session.node) is not session:
            return False
        del self._by_node[session.node]
        return True

    def end_all(self, goodbye: Goodbye) -> None:
        for session in tuple(self._by_node.values()):
            session.end(goodbye)
