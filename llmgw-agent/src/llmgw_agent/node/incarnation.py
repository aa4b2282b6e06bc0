"""What must be in hand of one shard's running engine. A store, shared by whoever acts on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmgw.domain.loads import MemoryReport
from llmgw.domain.reports import AdapterReport
from llmgw_agent.node.logs import EngineLog
from llmgw_agent.node.processes import Process, ProcessEntry, children, tree
from llmgw_agent.node.shardfolder import LaunchRecord, ShimState


@dataclass(slots=True, kw_only=True)
class Incarnation:
    """One engine process tree, from its launch until nothing of it is left."""

    cookie: str
    log: EngineLog
    secret: str  #: the engine's key, never to be shown
    record: LaunchRecord | None = None
    state: ShimState | None = None
    shim_child: int | None = None  #: the shim's pid while it is this very process's child
    known: frozenset[Process] = frozenset()  #: the tree as last seen
    memory: MemoryReport | None = None  #: what it said that it took, once it was ready
    adapters: tuple[AdapterReport, ...] = ()  #: how those are that it was told to have
    memory_before: dict[str, int] = field(default_factory=dict)  #: MiB used per device, before it

    def tree(self, table: dict[int, ProcessEntry]) -> frozenset[Process]:
        """Return the engine's processes, never the shim."""
        roots = set(self.known)
        if self.state is not None:
            roots |= {self.state.main, *children(table, self.state.shim)}
            return tree(table, cookie=self.cookie, roots=roots) - {self.state.shim}
        return tree(table, cookie=self.cookie, roots=roots)

    def masked(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        """Return lines without the engine's key."""
        return tuple(line.replace(self.secret, "***") for line in lines)
