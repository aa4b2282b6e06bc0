"""The node's way up: the link to the servers, joined to what they may ask of this node."""

from __future__ import annotations

import os
from dataclasses import dataclass

import anyio
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.config.places import JOIN_TOKEN_FILE, default_state_dir
from llmgw.domain.ids import NodeId
from llmgw_agent.node.assignments import Assignments
from llmgw_agent.node.commands import CommandHandler
from llmgw_agent.node.identity import KeptIdentity, NodeCredentials, TokenSource
from llmgw_agent.node.link import Abilities, Link
from llmgw_agent.node.outbox import Outbox
from llmgw_agent.node.status import ServerLink
from llmgw_agent.settings import AgentSettings
from llmgw_agent.wire.addresses import ServerAddress, TcpAddress, parse_servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """Link and certificate, which run together."""

    link: Link
    credentials: NodeCredentials
    servers: tuple[ServerAddress, ...]

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Dial and renew until cancelled."""
        async with anyio.create_task_group() as group:
            await group.start(self.credentials.run, self.servers)
            await group.start(self.link.run)
            task_status.started()

    def status(self) -> tuple[ServerLink, ...]:
        """Return how the link to each server stands."""
        return tuple(
            ServerLink(server=item.server, state=item.state, since=item.since, reason=item.reason)
            for item in self.link.status()
        )


class _Rejoining:
    """Membership of an agent that was told to change its cluster: the next server decides."""

    def __init__(self, assignments: Assignments) -> None:
        self._assignments = assignments
        self._decided = False

    def foreign_cluster(self, cluster_id: str) -> str | None:
        return self._assignments.foreign_cluster(cluster_id) if self._decided else None

    async def join(self, cluster_id: str) -> None:
        anew = not self._decided and self._assignments.cluster_id != cluster_id
        await self._assignments.join(cluster_id, anew=anew)
        self._decided = True


def speaks_tls(settings: AgentSettings) -> bool:
    """Whether this node has a certificate, or will: a socket file needs none."""
    servers = parse_servers(",".join(settings.servers)) if settings.servers else ()
    return any(isinstance(server, TcpAddress) for server in servers)


def open_uplink(
    settings: AgentSettings,
    *,
    kept: KeptIdentity,
    outbox: Outbox,
    commands: CommandHandler,
    assignments: Assignments,
    abilities: Abilities,
    clock: Clock,
) -> Uplink | None:
    """Return the way up, None if no server is named: then what is assigned is kept running."""
    if not settings.servers:
        return None
    servers = parse_servers(",".join(settings.servers))
    credentials = NodeCredentials(
        node=NodeId(settings.node_id),
        kept=kept,
        tokens=TokenSource(
            given=settings.join.get_secret_value() if settings.join else None,
            local=default_state_dir(os.environ) / JOIN_TOKEN_FILE,
        ),
        clock=clock,
    )
    link = Link(
        servers=servers,
        credentials=credentials,
        outbox=outbox,
        commands=commands,
        membership=_Rejoining(assignments) if settings.rejoin else assignments,
        abilities=abilities,
        clock=clock,
    )
    return Uplink(link=link, credentials=credentials, servers=servers)
