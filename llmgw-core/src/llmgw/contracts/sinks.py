"""Who hears of what: the seams between nodes, control plane and routers.

The control plane does not know the router. When the two are separate processes these
interfaces become a feed, and nothing above them changes.
"""

from __future__ import annotations

from typing import Protocol

from llmgw.domain.endpoints import Endpoint, ModelStatus, RouterUsage
from llmgw.domain.ids import Epoch, ModelName, NodeId, SessionId
from llmgw.domain.reports import Heartbeat, Registration, Rejection, ShardReport


class EndpointSink(Protocol):
    """Gets the whole list of endpoints, and only when it has changed."""

    def publish_endpoints(self, endpoints: tuple[Endpoint, ...], epoch: Epoch) -> None:
        """Replace the list. Must not wait; must not raise for a list it has seen before."""
        ...


class CatalogSink(Protocol):
    """Gets the whole catalog as routers need it, once per change."""

    def publish_catalog(self, models: tuple[ModelStatus, ...], epoch: Epoch) -> None: ...


class UsageSource(Protocol):
    """Says what routers have sent where. Read once a tick, never an event per request."""

    def usage(self) -> RouterUsage: ...


class Published(Protocol):
    """What routers have made of what they were told."""

    @property
    def serial(self) -> int:
        """Number of what was published last; a later one is higher."""
        ...

    def in_force(self) -> int:
        """Return the newest serial that every router has in force.

        A router that has fallen silent does not count after a while, or one that died would hold
        up every change.
        """
        ...


class Nudge(Protocol):
    """Somebody waits for a model that has no endpoint."""

    def nudge(self, model: ModelName) -> None:
        """Ask for it to be woken. Cheap, repeatable, coalesced by the receiver."""
        ...


class ReportSink(Protocol):
    """Gets what nodes say. Methods must not wait: they are called from a stream's reader."""

    def registered(self, registration: Registration) -> None: ...

    def heartbeat(self, node: NodeId, beat: Heartbeat) -> None: ...

    def shard_reported(self, node: NodeId, session: SessionId, report: ShardReport) -> None: ...

    def rejected(self, rejection: Rejection) -> None: ...

    def disconnected(self, node: NodeId, session: SessionId) -> None:
        """The session ended. Says nothing about the engines of the node."""
        ...


class Sink(Protocol):
    """A plugin that publishes the fleet somewhere else: a file, another proxy, a registry."""

    @property
    def name(self) -> str: ...

    async def publish(
        self, endpoints: tuple[Endpoint, ...], models: tuple[ModelStatus, ...]
    ) -> None:
        """Make the outside agree with this whole state. May wait; called off the control loops.

        Only the newest state is passed on: a slow sink skips states. A TransientError is
        retried with backoff, others are logged until the next change.
        """
        ...
