"""Takes in what nodes say. Called from the streams' readers, so nothing here may wait."""

from __future__ import annotations

from llmgw.clock import Clock
from llmgw.control.observe import Stores
from llmgw.domain.ids import NodeId, SessionId
from llmgw.domain.reports import Heartbeat, Registration, Rejection, ShardReport
from llmgw.logs import get_logger

log = get_logger(__name__)


class Intake:
    """The control plane's `ReportSink`: into the stores, then the bell."""

    def __init__(self, stores: Stores, clock: Clock) -> None:
        self._stores = stores
        self._clock = clock

    def registered(self, registration: Registration) -> None:
        """A session began: what it lists is all that the node has."""
        inventory = registration.inventory
        self._stores.inventory.registered(registration, now=self._clock.monotonic())
        self._stores.replicas.registered(registration)
        self._stores.leadership.seen_epoch(registration.epoch)
        self._stores.know_weights(
            {item.ref: item.facts for item in inventory.weights if item.facts}
        )
        log.info(
            "node registered",
            node=inventory.node,
            session=registration.session,
            devices=len(inventory.devices),
            shards=len(registration.shards),
            agent=inventory.agent_version,
        )
        self._stores.wake.ring()

    def heartbeat(self, node: NodeId, beat: Heartbeat) -> None:
        """A sign of life, with readings. Rings only if it changes what may be placed."""
        before = self._stores.inventory.revision
        if not self._stores.inventory.heartbeat(node, beat, now=self._clock.monotonic()):
            return
        if self._stores.inventory.revision != before:
            self._stores.wake.ring()

    def shard_reported(self, node: NodeId, session: SessionId, report: ShardReport) -> None:
        """A shard's state. One of an ended session says nothing: a newer registration has."""
        if not self._stores.inventory.seen(node, session, now=self._clock.monotonic()):
            log.debug("report of an old session ignored", node=node, session=session)
            return
        self._stores.replicas.reported(node, report)
        self._stores.leadership.seen_epoch(report.epoch)
        self._stores.wake.ring()

    def rejected(self, rejection: Rejection) -> None:
        """A node did not take a command."""
        log.warning(
            "node refused a command",
            node=rejection.node,
            shard=rejection.shard,
            code=rejection.code,
            message=rejection.message,
        )
        if rejection.code == "stale_epoch":
            return  # a newer leader acts; its lease tells us, and the shard has not failed
        for order in self._stores.desired.orders.values():
            if any(spec.id == rejection.shard for _, spec in order.shards):
                if not self._stores.replicas.is_reported(rejection.shard, rejection.node):
                    self._stores.replicas.rejected(rejection, order.replica)
                break
        self._stores.wake.ring()

    def disconnected(self, node: NodeId, session: SessionId) -> None:
        """A session ended. Its engines most likely serve on."""
        if self._stores.inventory.disconnected(node, session):
            log.warning("node disconnected", node=node, session=session)
            self._stores.wake.ring()
