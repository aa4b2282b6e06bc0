"""What a server may ask of this node besides commands, as the link needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from llmgw.contracts.dispatch import LogSource, WeightsEntry
from llmgw.domain.ids import NodeId
from llmgw_agent.node.host import Report


class Logs(Protocol):
    """The node's logs."""

    def sources(self) -> tuple[LogSource, ...]: ...

    def read(self, source: str, *, lines: int, follow: bool) -> AsyncIterator[str]:
        """Yield the last `lines`, then new ones for ever if `follow`.

        Raises PermanentError if there is no such source. Never waits for its reader.
        """
        ...


class Weights(Protocol):
    """The node's model files. All raise PermanentError or TransientError."""

    async def entries(self) -> tuple[WeightsEntry, ...]: ...

    async def pull(self, ref: str, *, report: Report) -> None:
        """Return once they are there and verified; may be cancelled, and resumed by another."""
        ...

    async def remove(self, ref: str) -> None: ...


class Engines(Protocol):
    """The node's installed engines. All raise PermanentError or TransientError."""

    async def install(self, engine: str, version: str, *, report: Report) -> None: ...

    async def remove(self, engine: str, version: str) -> None: ...


class Sharing(Protocol):
    """Gives this node's weights to other nodes."""

    def admit(self, node: NodeId, manifest: str, *, for_s: float) -> None:
        """Let a node have the weights of this manifest, for so long from now on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """Those that this node has."""

    logs: Logs | None = None
    weights: Weights | None = None
    engines: Engines | None = None
    sharing: Sharing | None = None
