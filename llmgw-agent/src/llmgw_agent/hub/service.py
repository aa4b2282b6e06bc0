"""The calls as gRPC makes them: who is calling, then on to the room that answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

import anyio
import anyio.to_thread
import grpc

from llmgw.contracts.trust import JoinGrant
from llmgw.domain.ids import NodeId, safe_name_problem
from llmgw.errors import PermanentError, TransientError
from llmgw.logs import get_logger
from llmgw_agent.hub.bulk import Answer, Answers
from llmgw_agent.hub.call import House, SessionCall
from llmgw_agent.hub.identity import Applicant, Identity, Member, SameUser, identify, peer_ip
from llmgw_agent.hub.offers import choose_peers
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.certificates import Unidentified
from llmgw_agent.wire.codec import decode_bulk, encode_offer
from llmgw_agent.wire.frames import BulkOpening, MalformedFrame, UnknownFrame
from llmgw_agent.wire.service import ByteStream, Call, Question, read_message

log = get_logger(__name__)

T = TypeVar("T")

_MAX_CSR_BYTES = 16 << 10
_BULK_END = pb.BulkEnd().SerializeToString()


class NodeStreamService:
    """Serves the calls (`wire.service.Servicer`)."""

    def __init__(self, house: House, answers: Answers, *, has_tls: bool) -> None:
        """has_tls: False on a socket file, which only our own user can open."""
        self._house = house
        self._answers = answers
        self._has_tls = has_tls
        # Certificates are checked and signed here; a thousand agents that come back at once
        # must not take every thread that the process has.
        self._threads = anyio.CapacityLimiter(4)

    async def session(self, frames: object, context: ByteStream) -> None:
        """Hold one node's session. frames: unused, the call reads by itself."""
        del frames
        await SessionCall(context, await self._identify(context), self._house).run()

    async def bulk(self, frames: object, context: ByteStream) -> bytes:
        """Take one answer. frames: unused, as above."""
        del frames
        identity = await self._identify(context)
        try:
            data = await read_message(context)
            opening = None if data is None else decode_bulk(data)
        except (MalformedFrame, UnknownFrame) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        node = identity.node if isinstance(identity, Member) else None
        is_member = isinstance(identity, Member | SameUser)
        answer = (
            self._answers.claim(opening.id, node)
            if is_member and isinstance(opening, BulkOpening)
            else None
        )
        if answer is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "nobody waits for this answer")
        await self._take(answer, context)
        return _BULK_END

    async def join(self, request: pb.CertificateRequest, context: Call) -> pb.CertificateGrant:
        """Sign a node's first certificate."""
        identity = await self._identify(context)
        if not isinstance(identity, Applicant):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "joining takes a join token's certificate"
            )
        node = await self._node(request, context)
        grant = await self._sign(
            context,
            lambda: self._house.trust.join(
                token_id=identity.token_id,
                csr=request.csr,
                node=node,
                peer_address=peer_ip(context.peer()),
            ),
        )
        log.info("node joined", node=node, token_id=identity.token_id, peer=context.peer())
        return _encode(grant)

    async def renew(self, request: pb.CertificateRequest, context: Call) -> pb.CertificateGrant:
        """Sign a fresh certificate for the caller."""
        identity = await self._identify(context)
        node = await self._node(request, context)
        if not isinstance(identity, Member) or identity.node != node:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"the certificate is not node {node}'s"
            )
        if reason := self._house.trust.revoked(node):
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"node {node} is revoked: {reason}"
            )
        pool = identity.pool
        grant = await self._sign(
            context, lambda: self._house.trust.renew(node=node, csr=request.csr, pool=pool)
        )
        log.info("node's certificate renewed", node=node)
        return _encode(grant)

    async def find_weights(self, request: pb.WeightsQuestion, context: Question) -> pb.WeightsOffer:
        """Say which nodes have weights, and tell those that the caller will come."""
        identity = await self._identify(context)
        if isinstance(identity, SameUser):
            return pb.WeightsOffer()  # over a socket file there are no nodes but this machine's
        if not isinstance(identity, Member):
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "a join token gets no weights: join first"
            )
        trust, sessions = self._house.trust, self._house.sessions
        asker = sessions.of(identity.node)
        if (reason := trust.revoked(identity.node)) or asker is None:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"node {identity.node} "
                + (f"is revoked: {reason}" if reason else "has no session"),
            )
        offer = choose_peers(
            request.ref,
            asker.inventory,
            (item.inventory for item in sessions if not trust.revoked(item.node)),
        )
        if offer is None:
            return pb.WeightsOffer()
        self._house.admissions.admit(asker.node, offer)
        return encode_offer(offer)

    async def _take(self, answer: Answer, context: ByteStream) -> None:
        async def read() -> None:
            with answer.incoming:
                while (data := await read_message(context)) is not None:
                    await answer.incoming.send(decode_bulk(data))

        async with anyio.create_task_group() as tasks:

            async def lead() -> None:
                try:
                    await read()
                except (MalformedFrame, UnknownFrame) as error:
                    log.warning("bulk answer ended", node=answer.node, reason=str(error))
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    pass  # whoever asked has left while a frame was handed over
                tasks.cancel_scope.cancel()

            tasks.start_soon(lead)
            await answer.abandoned.wait()
            tasks.cancel_scope.cancel()

    async def _identify(self, context: ByteStream | Call | Question) -> Identity:
        if not self._has_tls:
            return SameUser()
        leaf = b"".join(context.auth_context().get("x509_pem_cert", ()))
        trust = self._house.trust
        try:
            return await self._in_thread(
                lambda: identify(leaf, trust.server_identity().client_roots, trust.cluster_id)
            )
        except Unidentified as error:
            await _refuse(context, grpc.StatusCode.UNAUTHENTICATED, f"certificate refused: {error}")
        except TransientError as error:
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))

    async def _node(self, request: pb.CertificateRequest, context: Call) -> NodeId:
        if problem := safe_name_problem(request.node):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"node id {problem}")
        if len(request.csr) > _MAX_CSR_BYTES:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the signing request is too large"
            )
        return NodeId(request.node)

    async def _sign(self, context: Call, sign: Callable[[], JoinGrant]) -> JoinGrant:
        try:
            return await self._in_thread(sign)
        except PermanentError as error:
            await _refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
        except TransientError as error:
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._threads)


async def _refuse(
    context: ByteStream | Call | Question, code: grpc.StatusCode, reason: str
) -> NoReturn:
    log.warning("call refused", peer=context.peer(), reason=reason)
    await context.abort(code, reason)


def _encode(grant: JoinGrant) -> pb.CertificateGrant:
    return pb.CertificateGrant(
        certificate_chain=grant.certificate_chain,
        ca_bundle=grant.ca_bundle,
        cluster_id=grant.cluster_id,
        pool=grant.pool,
    )
