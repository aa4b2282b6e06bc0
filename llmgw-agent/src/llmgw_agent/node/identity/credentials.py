"""Joins once, renews in time, and hands out what proves this node to a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import grpc
import grpc.aio

from llmgw.clock import Clock
from llmgw.contracts.join import JoinToken
from llmgw.domain.ids import NodeId
from llmgw.errors import LlmgwError, PermanentError, TransientError
from llmgw.logs import get_logger
from llmgw_agent.node.identity.keeping import KeptIdentity
from llmgw_agent.node.identity.tokens import TokenSource
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.addresses import ServerAddress, TcpAddress
from llmgw_agent.wire.dialling import secure_channel
from llmgw_agent.wire.service import Stub, reason_of

log = get_logger(__name__)

T = TypeVar("T")

_CALL_LIMIT_S = 20.0
_CHECK_EVERY_S = 3600.0
_REFUSALS = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
)


class NodeCredentials:
    """The node's certificate, however it has to be got (`dialler.Credentials`)."""

    def __init__(
        self, *, node: NodeId, kept: KeptIdentity, tokens: TokenSource, clock: Clock
    ) -> None:
        self._node = node
        self._kept = kept
        self._tokens = tokens
        self._clock = clock
        self._in_force = ""  #: digest of the authorities, as a server last said
        self._changed = anyio.Event()
        self._in_vain: set[str] = set()  #: ids of tokens that did not help
        self._joining = anyio.Lock()  # one token is good for one certificate

    async def channel_credentials(self, server: ServerAddress) -> grpc.ChannelCredentials:
        """Return what opens a session, after joining through `server` where needed.

        Raises TransientError if time may help, PermanentError if the server refuses.
        """
        async with self._joining:
            if not self._kept.is_usable(self._clock.wall()):
                await self._join_first(server)
            elif (token := self._newer_token()) is not None:
                await self._join_again(server, token)
        return self._kept.channel_credentials()

    @property
    def pool(self) -> str | None:
        """The pool that the join token bound this node to; None: it chooses."""
        return self._kept.pool

    async def run(
        self,
        servers: Sequence[ServerAddress],
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Renew the certificate when a third of its life is over, until cancelled.

        Open streams are left alone: the new one is for the next connection.
        """
        task_status.started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._renew_on_change, servers)
            while True:
                await self._clock.sleep(_CHECK_EVERY_S)
                await self.renew_if_due(servers)

    def authorities_seen(self, digest: str) -> None:
        """Take note of what a server says is in force; another set than ours means: renew now."""
        if digest not in ("", self._in_force):
            self._in_force = digest
            if self._kept.authorities not in ("", digest):
                self._changed.set()

    async def _renew_on_change(self, servers: Sequence[ServerAddress]) -> None:
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            log.info("the cluster's authorities changed", next="the certificate is renewed")
            await self._renew_at_one_of(servers)

    async def renew_if_due(self, servers: Sequence[ServerAddress]) -> None:
        """Try each server until one renews. A failure is only logged: there are days left."""
        wall = self._clock.wall()
        is_behind = self._in_force not in ("", self._kept.authorities)
        if self._kept.is_usable(wall) and (self._kept.is_due(wall) or is_behind):
            await self._renew_at_one_of(servers)

    async def _renew_at_one_of(self, servers: Sequence[ServerAddress]) -> None:
        for server in servers:
            if not isinstance(server, TcpAddress):
                continue
            try:
                await self._renew(server)
            except LlmgwError as error:
                log.warning(
                    "certificate not renewed",
                    server=str(server),
                    reason=str(error),
                    expires=self._kept.expired_on,
                    next="tried again within the hour",
                )
            else:
                return

    async def _join_first(self, server: ServerAddress) -> None:
        try:
            try:
                token = self._tokens.read()
            except ValueError as error:
                raise PermanentError(str(error)) from None
            await self._join(server, token)
        except LlmgwError as error:
            if self._kept.expired_on is None:
                raise
            # A node that was a member goes on looking after its engines, whoever refuses it.
            raise TransientError(
                f"this node's certificate ran out on {self._kept.expired_on}; {error}"
            ) from None

    def _newer_token(self) -> JoinToken | None:
        """Return a given token by an authority which this node does not know.

        The cluster has changed its authority while the node was away: its certificate may be
        good for years, but no server is left that accepts it, nor one that it accepts.
        """
        try:
            token = self._tokens.read_given()
        except (ValueError, TransientError):
            return None
        if token is None or token.id in self._in_vain or token.pin in self._kept.pins:
            return None
        return token

    async def _join_again(self, server: ServerAddress, token: JoinToken) -> None:
        """Replace the certificate if `server` has the token's authority; else leave all as it is."""
        try:
            await self._join(server, token)
        except LlmgwError as error:
            log.warning("not joined anew", server=str(server), reason=str(error))
            if isinstance(error, PermanentError):
                # Most likely the token that the node first joined with, still on its command
                # line long after the cluster has moved on.
                self._in_vain.add(token.id)

    async def _join(self, server: ServerAddress, token: JoinToken) -> None:
        if not isinstance(server, TcpAddress):
            raise PermanentError(f"{server}: a socket file takes no certificate")
        papers = await _apart(lambda: self._kept.mint.join(server, token, self._node))
        credentials = grpc.ssl_channel_credentials(
            root_certificates=papers.authority.encode(),
            private_key=papers.key.encode(),
            certificate_chain=papers.proof.encode(),
        )
        async with secure_channel(server, credentials) as channel:
            try:
                grant = await self._call(Stub(channel).join, server, papers.request)
            except TransientError as error:
                # The server was there a moment ago and TLS gives no reason: it trusts only the
                # authorities of tokens that are still good.
                raise TransientError(
                    f"{error}; most likely the join token is spent, expired or revoked: make a "
                    "new one with `llmgw ctl join-token create`"
                ) from None
        if self._kept.cluster_id not in (None, grant.cluster_id):
            raise PermanentError(
                f"this node belongs to cluster {self._kept.cluster_id} and the join token to "
                f"{grant.cluster_id}: start the agent once with --rejoin to change over"
            )
        await self._keep(papers.key, grant)
        log.info("joined the cluster", server=str(server), cluster_id=grant.cluster_id)

    async def _renew(self, server: TcpAddress) -> None:
        papers = await _apart(lambda: self._kept.mint.renew(self._node))
        async with secure_channel(server, self._kept.channel_credentials()) as channel:
            grant = await self._call(Stub(channel).renew, server, papers.request)
        await self._keep(papers.key, grant)
        log.info("certificate renewed", server=str(server), expires=self._kept.expired_on)

    async def _call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[pb.CertificateRequest, pb.CertificateGrant],
        server: TcpAddress,
        csr: str,
    ) -> pb.CertificateGrant:
        request = pb.CertificateRequest(node=self._node, csr=csr.encode())
        try:
            return await method(request, timeout=_CALL_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSALS:
                raise PermanentError(f"{server} refuses: {error.details()}") from None
            raise TransientError(f"{server}: {reason_of(error)}") from None

    async def _keep(self, key: str, grant: pb.CertificateGrant) -> None:
        try:
            await _apart(lambda: self._kept.take(key, grant))
        except ValueError as error:
            raise TransientError(f"the server's certificate cannot be used: {error}") from None
        except OSError as error:
            raise TransientError(f"the certificate cannot be kept: {error}") from None


async def _apart(work: Callable[[], T]) -> T:
    """Do what waits for another process; who is cancelled does not wait for it."""
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
