"""Nodes that the cluster knows, and what operators said of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from llmgw.clock import Clock
from llmgw.domain.ids import NodeId
from llmgw.errors import RequestError
from llmgw.store.database import Database
from llmgw.store.schema import nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """A node as it registered; what is written in batches, not per heartbeat."""

    id: NodeId
    agent_uid: str
    machine_id: str
    hostname: str
    pool: str
    at: float  #: Unix seconds of its last sign of life


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNode:
    """A node that has registered at least once and was not forgotten."""

    id: NodeId
    agent_uid: str | None
    machine_id: str | None
    hostname: str
    pool: str
    first_seen: float
    last_seen: float
    labels: Mapping[str, str] = field(default_factory=dict)  #: set by operators, over its own
    cordoned: str | None = None  #: why it gets no new replica; None: it may
    draining: str | None = None  #: why its replicas are moved away; None: they are not
    drain_until: float | None = None  #: Unix seconds after which draining replicas are stopped
    fenced: str | None = None  #: why nothing is believed to run there; None: not fenced


class NodeRepository:
    """Known nodes. Every change is a leader's act."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def list(self) -> tuple[KnownNode, ...]:
        """Return all known nodes by id."""
        return self._database.read(
            lambda connection: tuple(
                _node(row) for row in connection.execute(sa.select(nodes).order_by(nodes.c.id))
            )
        )

    def record_seen(self, batch: Iterable[SeenNode]) -> None:
        """Add new nodes and note when known ones were last seen."""
        seen = tuple(batch)

        def work(connection: sa.Connection) -> None:
            known = set(connection.execute(sa.select(nodes.c.id)).scalars())
            for node in seen:
                values = {
                    "agent_uid": node.agent_uid,
                    "machine_id": node.machine_id,
                    "hostname": node.hostname,
                    "pool": node.pool,
                    "last_seen": node.at,
                }
                change: sa.Update | sa.Insert
                if node.id in known:
                    change = nodes.update().where(nodes.c.id == node.id).values(values)
                else:
                    change = nodes.insert().values(
                        id=node.id, first_seen=node.at, labels_json="{}", **values
                    )
                    known.add(node.id)
                connection.execute(change)

        if seen:
            self._database.write(work, fenced=True)

    def cordon(self, node: NodeId, reason: str) -> KnownNode:
        """Give it no new replica. Repeating it changes the reason."""
        return self._set(node, cordoned=reason)

    def uncordon(self, node: NodeId) -> KnownNode:
        """Take back `cordon` and `drain`."""
        return self._set(node, cordoned=None, draining=None, drain_until=None)

    def drain(self, node: NodeId, reason: str, *, limit_s: float | None) -> KnownNode:
        """Give it no new replica and move away those that it has, within `limit_s`."""
        until = None if limit_s is None else self._clock.wall() + limit_s
        return self._set(node, cordoned=reason, draining=reason, drain_until=until)

    def fence(self, node: NodeId, reason: str) -> KnownNode:
        """An operator vouches that nothing runs there: its devices are free again."""
        return self._set(node, fenced=reason)

    def unfence(self, node: NodeId) -> KnownNode:
        """It has come back and reported."""
        return self._set(node, fenced=None)

    def set_labels(self, node: NodeId, labels: Mapping[str, str]) -> KnownNode:
        """Replace the operators' labels."""
        return self._set(node, labels_json=json.dumps(dict(labels), sort_keys=True))

    def forget(self, node: NodeId) -> None:
        """Drop it from the known nodes; it is known again as soon as it registers."""

        def work(connection: sa.Connection) -> None:
            if connection.execute(nodes.delete().where(nodes.c.id == node)).rowcount == 0:
                raise _unknown(node)

        self._database.write(work, fenced=True)

    def _set(self, node: NodeId, **values: object) -> KnownNode:
        def work(connection: sa.Connection) -> KnownNode:
            row = connection.execute(
                nodes.update().where(nodes.c.id == node).values(values).returning(*nodes.c)
            ).one_or_none()
            if row is None:
                raise _unknown(node)
            return _node(row)

        return self._database.write(work, fenced=True)


def _unknown(node: NodeId) -> RequestError:
    return RequestError(
        f"no node {node!r} is known; `llmgw ctl nodes` lists them",
        status=404,
        code="node_not_found",
    )


def _node(row: sa.Row[tuple[object, ...]]) -> KnownNode:
    return KnownNode(
        id=NodeId(row.id),
        agent_uid=row.agent_uid,
        machine_id=row.machine_id,
        hostname=row.hostname,
        pool=row.pool,
        first_seen=row.first_seen,
        last_seen=row.last_seen,
        labels=json.loads(row.labels_json),
        cordoned=row.cordoned,
        draining=row.draining,
        drain_until=row.drain_until,
        fenced=row.fenced,
    )
