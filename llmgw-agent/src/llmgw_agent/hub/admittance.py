"""Whether a registration starts a session."""

from __future__ import annotations

from llmgw.domain.ids import NodeId, SessionId, safe_name_problem
from llmgw.domain.reports import Registration
from llmgw_agent.hub.identity import Identity, Member, SameUser
from llmgw_agent.wire.frames import Goodbye, GoodbyeCode
from llmgw_agent.wire.versions import skew_refusal


def refuse(
    registration: Registration,
    *,
    identity: Identity,
    cluster_id: str,
    server_version: str,
    revoked: str | None,
    live: tuple[str, SessionId] | None,
) -> Goodbye | None:
    """Return why not; None: welcome, and it takes over from `live` if there is one.

    revoked: why the node is. live: agent uid and session that this node has now.
    """
    inventory = registration.inventory
    return (
        _identity_problem(inventory.node, identity)
        or speaks_for_others(registration, inventory.node)
        or _revoked(inventory.node, revoked)
        or skew_refusal(inventory.agent_version, server_version)
        or _cluster_problem(registration, cluster_id)
        or (_live_problem(registration, *live) if live else None)
    )


def speaks_for_others(registration: Registration, node: NodeId) -> Goodbye | None:
    """Return why a registration says more than `node` may say; None if it does not."""
    named = (registration.inventory.node, *(report.shard.node for report in registration.shards))
    return next((goodbye for other in named if (goodbye := foreign(other, node))), None)


def foreign(named: NodeId, node: NodeId) -> Goodbye | None:
    """Return why a frame that names `named` ends the session of `node`; None if they are one."""
    if named == node:
        return None
    return Goodbye(
        code=GoodbyeCode.IDENTITY_MISMATCH,
        message=f"a frame speaks for node {named} in the session of node {node}",
    )


def _identity_problem(node: NodeId, identity: Identity) -> Goodbye | None:
    if problem := safe_name_problem(node):
        return Goodbye(code=GoodbyeCode.IDENTITY_MISMATCH, message=f"node id {problem}")
    match identity:
        case SameUser():
            return None
        case Member(node=named) if named == node:
            return None
        case Member(node=named):
            message = f"the certificate is node {named}'s, and the agent calls itself {node}"
        case _:
            message = "a join token does not open a session: join first"
    return Goodbye(code=GoodbyeCode.IDENTITY_MISMATCH, message=message)


def _revoked(node: NodeId, reason: str | None) -> Goodbye | None:
    if reason is None:
        return None
    return Goodbye(code=GoodbyeCode.REVOKED, message=f"node {node} is revoked: {reason}")


def _cluster_problem(registration: Registration, cluster_id: str) -> Goodbye | None:
    if registration.cluster_id in (None, cluster_id):
        return None
    return Goodbye(
        code=GoodbyeCode.OTHER_CLUSTER,
        message=f"node {registration.inventory.node} belongs to cluster {registration.cluster_id}, "
        f"this server to {cluster_id}: start the agent once with --rejoin to change over",
    )


def _live_problem(registration: Registration, uid: str, session: SessionId) -> Goodbye | None:
    inventory = registration.inventory
    if inventory.agent_uid != uid:
        return Goodbye(
            code=GoodbyeCode.NODE_ID_TAKEN,
            message=f"another agent has a live session as node {inventory.node}: "
            "give this one a --node-id of its own",
        )
    if _is_newer(session, registration.session):
        return Goodbye(
            code=GoodbyeCode.STALE_SESSION,
            message=f"session {session} of the same agent is newer than {registration.session}",
        )
    return None


def _is_newer(one: SessionId, other: SessionId) -> bool:
    """Whether `one` is known to have begun after `other`.

    Between two starts of an agent arrival decides: the lock of its state folder lets only one
    live, and that one dials last.
    """
    (boot, counter), (other_boot, other_counter) = _parts(one), _parts(other)
    return boot == other_boot and counter >= other_counter


def _parts(session: SessionId) -> tuple[str, int]:
    boot, _, counter = session.rpartition("/")
    return boot, int(counter) if counter.isascii() and counter.isdigit() else 0
