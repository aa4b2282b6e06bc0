"""What the admin room needs of the rest of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from llmgw.admin.jobs import Jobs
from llmgw.admin.pulse import Pulse
from llmgw.clock import Clock
from llmgw.config.server import OidcSettings
from llmgw.contracts.dispatch import Dispatcher
from llmgw.control.view import FleetView
from llmgw.domain.catalog import Model
from llmgw.domain.endpoints import RouterUsage
from llmgw.domain.ids import NodeId
from llmgw.domain.secret import Secret
from llmgw.errors import Problem
from llmgw.router.selection import Selector
from llmgw.router.table import Table
from llmgw.store import Store


class RouterView(Protocol):
    """What the admin room reads of a router."""

    @property
    def table(self) -> Table: ...

    @property
    def selector(self) -> Selector: ...

    def usage(self) -> RouterUsage: ...


class FeedSource(Protocol):
    """Serves stand-alone routers: whole snapshots, one a line, and takes back what they used."""

    def lines(self) -> AsyncIterator[bytes]:
        """Yield the present snapshot, then each newer one, for ever; each ends in a newline."""
        ...

    async def receive(self, body: bytes) -> bytes:
        """Take one report of a router; return the answer as JSON: what it may use.

        Raises RequestError if it cannot be read.
        """
        ...


async def _nothing_follows() -> None:
    """Nobody waits for the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminParts:
    """Everything that the admin listener shows and changes. None: this server has it not."""

    token: Secret  #: of `admin.token`; opens everything
    clock: Clock
    server: str  #: this server's name, for people
    store: Store | None = None
    view: FleetView | None = None
    router: RouterView | None = None
    dispatcher: Dispatcher | None = None
    feed: FeedSource | None = None
    check_catalog: Callable[[Sequence[Model]], Sequence[Problem]] = lambda _: ()
    """Says what is wrong with a whole catalog: `ControlPlane.check_catalog`."""
    retry: Callable[[str], Collection[NodeId]] = lambda _: ()
    """Tries again what of a model has failed: `ControlPlane.retry`."""
    follow: Callable[[], Awaitable[None]] = _nothing_follows
    """Brings the server in step with what was just stored: `store.Follower.refresh`."""
    metrics: Callable[[], Awaitable[bytes]] | None = None  #: Prometheus text
    oidc: OidcSettings | None = None
    pulse: Pulse = field(default_factory=Pulse)
    jobs: Jobs = field(default_factory=Jobs)
    api_url: str | None = None  #: of this process's API listener, for the playground
    server_log: Sequence[str] = ()  #: newest lines of this process, oldest first
    problems: Callable[[], Sequence[str]] = tuple  #: of this server itself, for the overview
    allowed_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "::1")
    """Host names that a browser may have come by; `*` for any, off loopback."""
