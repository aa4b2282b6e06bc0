"""Keeps one session with every server, through whatever happens to either end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from random import Random
from typing import Protocol

import anyio
import anyio.abc
import grpc
import grpc.aio

from llmgw.clock import Clock
from llmgw.domain.ids import SessionId
from llmgw.errors import TransientError
from llmgw.logs import get_logger
from llmgw_agent.node.link.abilities import Abilities
from llmgw_agent.node.link.backoff import attempts_after, redial_delay_s
from llmgw_agent.node.link.lag import LoopLag
from llmgw_agent.node.link.orders import Commands, Orders
from llmgw_agent.node.link.session import Ended, LinkSession, Membership, Node
from llmgw_agent.node.link.status import Complaint, ServerState, ServerStatus
from llmgw_agent.node.outbox import Outbox
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.addresses import ServerAddress, UnixAddress
from llmgw_agent.wire.codec import decode_offer
from llmgw_agent.wire.dialling import secure_channel, socket_channel
from llmgw_agent.wire.frames import WeightsOffer
from llmgw_agent.wire.service import Stub, reason_of

log = get_logger(__name__)

_QUESTION_LIMIT_S = 10.0


class Credentials(Protocol):
    """Proves to a server who this node is."""

    async def channel_credentials(self, server: ServerAddress) -> grpc.ChannelCredentials:
        """Return them, joining the cluster through `server` first if need be.

        Raises TransientError if the server cannot be reached, PermanentError if it refuses or
        is not the one that the join token names.
        """
        ...

    def authorities_seen(self, digest: str) -> None:
        """Take note of which certificate authorities a server says are in force."""
        ...

    @property
    def pool(self) -> str | None:
        """The pool that the join token bound this node to; None: it chooses."""
        ...


class Link:
    """Dials every server for ever; each session begins with the node's whole report."""

    def __init__(
        self,
        *,
        servers: Sequence[ServerAddress],
        credentials: Credentials,
        outbox: Outbox,
        commands: Commands,
        membership: Membership,
        clock: Clock,
        abilities: Abilities | None = None,
        random: Random | None = None,
    ) -> None:
        self._servers = tuple(servers)
        self._credentials = credentials
        self._clock = clock
        self._random = random or Random()  # noqa: S311 # jitter, no secret
        self._lag = LoopLag(clock)
        self._orders = Orders(commands)
        self._node = Node(
            outbox=outbox,
            orders=self._orders,
            membership=membership,
            abilities=abilities or Abilities(),
            pool=lambda: credentials.pool,
            authorities_seen=credentials.authorities_seen,
            lag=self._lag,
            clock=clock,
            random=self._random,
        )
        # Distinguishes this life of the agent from the last one, whatever the host's boot id.
        self._boot = secrets.token_hex(8)
        self._counter = 0
        self._stubs: dict[ServerAddress, Stub] = {}  #: of servers with a live session
        self._status = {
            server: ServerStatus(server=str(server), state=ServerState.DIALLING, since=clock.wall())
            for server in self._servers
        }

    def status(self) -> tuple[ServerStatus, ...]:
        """Return how the link to each server stands, in the order given."""
        return tuple(self._status[server] for server in self._servers)

    async def find_weights(self, ref: str) -> WeightsOffer | None:
        """Return which nodes give weights to this one; None if none does, or no server says."""
        for server, stub in tuple(self._stubs.items()):
            try:
                answer = await stub.find_weights(
                    pb.WeightsQuestion(ref=ref), timeout=_QUESTION_LIMIT_S
                )
            except grpc.aio.AioRpcError as error:
                log.debug("server names no nodes", server=str(server), reason=reason_of(error))
                continue
            except asyncio.CancelledError:
                # gRPC says the same of a call whose channel went away with its session. Only where
                # somebody cancelled us may it go on: else it would end whoever asks.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                continue
            return decode_offer(answer)
        return None

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Dial until cancelled. Raises PermanentError only if the node may not join at all."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._lag.run)
            await tasks.start(self._orders.run)
            for server in self._servers:
                tasks.start_soon(self._keep, server)
            task_status.started()

    async def _keep(self, server: ServerAddress) -> None:
        attempt = 0
        complaint = Complaint()
        while True:
            ended = await self._once(server)
            if ended.up_s:
                complaint.clear()
            attempt = attempts_after(attempt, ended.up_s)
            delay_s = redial_delay_s(attempt, self._random.random())
            attempt += 1
            self._note(
                server,
                ServerState.REFUSED if ended.is_refusal else ServerState.WAITING,
                ended.reason,
            )
            if complaint.is_due(ended.reason, self._clock.monotonic()):
                log.warning(
                    "server refuses this agent"
                    if ended.is_refusal
                    else "no connection to the server",
                    server=str(server),
                    reason=ended.reason,
                    engines="left running",
                    next="dialling again for ever",
                )
            await self._clock.sleep(delay_s)

    async def _once(self, server: ServerAddress) -> Ended:
        self._note(server, ServerState.DIALLING)
        try:
            channel = await self._channel(server)
        except TransientError as error:
            return Ended(reason=str(error))
        async with channel:
            self._counter += 1
            session = SessionId(f"{self._boot}/{self._counter}")
            stub = Stub(channel)
            try:
                return await LinkSession(
                    session,
                    stub,
                    self._node,
                    welcomed=lambda: self._connected(server, session, stub),
                ).run()
            finally:
                self._stubs.pop(server, None)

    async def _channel(self, server: ServerAddress) -> grpc.aio.Channel:
        if isinstance(server, UnixAddress):
            return socket_channel(server)
        return secure_channel(server, await self._credentials.channel_credentials(server))

    def _connected(self, server: ServerAddress, session: SessionId, stub: Stub) -> None:
        self._stubs[server] = stub
        self._note(server, ServerState.CONNECTED)
        log.info("connected to the server", server=str(server), session=session)

    def _note(self, server: ServerAddress, state: ServerState, reason: str = "") -> None:
        self._status[server] = ServerStatus(
            server=str(server), state=state, since=self._clock.wall(), reason=reason
        )
