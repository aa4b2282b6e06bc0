"""What is reported to a server that does not lead, on its way to the one that does.

Routers may hold feeds to followers only, and a follower has a router of its own. Who uses what,
who waits and what is in force must be known where decisions are made: an endpoint that the
leader believed idle would be put to sleep under a follower's requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmgw.clock import Clock
from llmgw.contracts.sinks import Nudge, UsageSource
from llmgw.domain.endpoints import Endpoint, ModelStatus, RouterUsage
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.domain.keys import ApiKey, KeySpend
from llmgw.domain.shares import RouterShares, RouterWants
from llmgw.router.feed import FeedSource
from llmgw.router.keys import KeyTable
from llmgw.router.usage import UsageLedger


class _KeysOfTheStore(KeyTable):
    """Leaves out what peers say of keys: every server reads them from the store."""

    def replace(self, keys: Iterable[ApiKey], spend: Iterable[KeySpend] = ()) -> None:
        pass

    def learn(self, spend: Iterable[KeySpend]) -> None:
        pass


class Forwarding:
    """`router.feed.Fed` towards the other servers: this one is to the leader what a router is.

    Usage records are not among what goes up: every server adds those to the store by itself.
    """

    def __init__(self, feed: FeedSource, usage: UsageSource, clock: Clock) -> None:
        """feed: of this server. usage: of all its routers, its own included."""
        self._feed = feed
        self._usage = usage
        self._led: tuple[Endpoint, ...] = ()
        self.keys: KeyTable = _KeysOfTheStore(clock, is_open=False)
        self.ledger = UsageLedger()

    def publish_endpoints(
        self,
        endpoints: tuple[Endpoint, ...],
        epoch: Epoch,  # noqa: ARG002 - the feed's client has chosen the right one
    ) -> None:
        """Note what the leader has published; this server publishes by what it hears itself."""
        self._led = endpoints

    def publish_catalog(self, models: tuple[ModelStatus, ...], epoch: Epoch) -> None:
        pass

    def usage(self) -> RouterUsage:
        return self._usage.usage()

    def wants(self) -> RouterWants:
        return self._feed.wants()

    def take_shares(self, shares: RouterShares) -> None:
        if not self._feed.snapshot.leading:
            self._feed.desk.bound = shares

    def has_in_force(self) -> bool:
        """Say whether all routers of this server serve the fleet as the leader published it.

        Static endpoints are each server's own affair.
        """
        return _fleet(self._led) == _fleet(self._feed.snapshot.endpoints) and (
            self._feed.all_applied()
        )


class NudgeAll:
    """Tells this server's control plane and, while another one leads, that one."""

    def __init__(self, feed: FeedSource, plane: Nudge, leader: Nudge) -> None:
        self._feed = feed
        self._plane = plane
        self._leader = leader

    def nudge(self, model: ModelName) -> None:
        self._plane.nudge(model)
        if not self._feed.snapshot.leading:
            self._leader.nudge(model)


def _fleet(endpoints: Sequence[Endpoint]) -> dict[EndpointId, Endpoint]:
    return {endpoint.id: endpoint for endpoint in endpoints if endpoint.replica is not None}
