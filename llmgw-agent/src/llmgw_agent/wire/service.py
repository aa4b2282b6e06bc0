"""The calls of agent.proto by name, for both ends.

Session and Bulk carry bytes here, not messages: a frame that cannot be read must end in an
answer or in one ended call, never in an error of gRPC's own (`codec`).
"""

from __future__ import annotations

from typing import Any, Protocol

import grpc
import grpc.aio

from llmgw_agent.wire import agent_pb2 as pb

SERVICE = "llmgw.agent.v1.NodeStream"

ByteStream = grpc.aio.ServicerContext[bytes, bytes]
Call = grpc.aio.ServicerContext[pb.CertificateRequest, pb.CertificateGrant]
Question = grpc.aio.ServicerContext[pb.WeightsQuestion, pb.WeightsOffer]


class Servicer(Protocol):
    """The server's end."""

    async def session(self, frames: object, context: ByteStream) -> None:
        """Converse by `context.read` and `context.write` until the session ends."""
        ...

    async def bulk(self, frames: object, context: ByteStream) -> bytes:
        """Take one answer by `context.read`; return an encoded BulkEnd."""
        ...

    async def join(self, request: pb.CertificateRequest, context: Call) -> pb.CertificateGrant: ...

    async def renew(self, request: pb.CertificateRequest, context: Call) -> pb.CertificateGrant: ...

    async def find_weights(
        self, request: pb.WeightsQuestion, context: Question
    ) -> pb.WeightsOffer: ...


class Readable(Protocol):
    """Either end of a call from which messages come."""

    async def read(self) -> object: ...


async def read_message(call: Readable) -> bytes | None:
    """Return the next message; None when the peer has sent its last. Must not be cancelled lightly.

    Cancelling a read cancels the whole call.
    """
    message = await call.read()
    return message if isinstance(message, bytes) else None  # else it is grpc.aio.EOF


def handler(servicer: Servicer) -> grpc.GenericRpcHandler[Any, Any]:
    """Return what a gRPC server must be given to serve the calls."""
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Session": grpc.stream_stream_rpc_method_handler(servicer.session),
            "Bulk": grpc.stream_unary_rpc_method_handler(servicer.bulk),
            "Join": _certificates(servicer.join),
            "Renew": _certificates(servicer.renew),
            "FindWeights": grpc.unary_unary_rpc_method_handler(
                servicer.find_weights,
                request_deserializer=pb.WeightsQuestion.FromString,
                response_serializer=pb.WeightsOffer.SerializeToString,
            ),
        },
    )


def _certificates(method: object) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        method,  # type: ignore[arg-type] # the stubs know no async servicers
        request_deserializer=pb.CertificateRequest.FromString,
        response_serializer=pb.CertificateGrant.SerializeToString,
    )


class Stub:
    """The agent's end: the calls on one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.session = channel.stream_stream(f"/{SERVICE}/Session", None, None)
        self.bulk = channel.stream_unary(f"/{SERVICE}/Bulk", None, None)
        self.join = channel.unary_unary(
            f"/{SERVICE}/Join",
            request_serializer=pb.CertificateRequest.SerializeToString,
            response_deserializer=pb.CertificateGrant.FromString,
        )
        self.renew = channel.unary_unary(
            f"/{SERVICE}/Renew",
            request_serializer=pb.CertificateRequest.SerializeToString,
            response_deserializer=pb.CertificateGrant.FromString,
        )
        self.find_weights = channel.unary_unary(
            f"/{SERVICE}/FindWeights",
            request_serializer=pb.WeightsQuestion.SerializeToString,
            response_deserializer=pb.WeightsOffer.FromString,
        )


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Return why a call failed, without the list of addresses that gRPC puts before it."""
    details = (error.details() or "").rpartition("last error: ")[2]
    code: str = error.code().name.lower()
    return f"{code}: {details}" if details else code
