"""The frames of a session, to and from messages of at most 1 MiB."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from llmgw.domain.commands import (
    AdaptShard,
    DrainShard,
    SleepShard,
    StartShard,
    StopShard,
    WakeShard,
)
from llmgw.domain.ids import NodeId
from llmgw.domain.reports import Heartbeat, Registration, Rejection, ShardReport
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.codec import commands, reports
from llmgw_agent.wire.codec.bulk import decode_request, encode_request
from llmgw_agent.wire.codec.parts import MAX_MESSAGE, Pieces, pieces
from llmgw_agent.wire.codec.scalars import text
from llmgw_agent.wire.frames import (
    AdmitPeer,
    BulkRequest,
    DownFrame,
    Goodbye,
    HeartbeatReply,
    MalformedFrame,
    UnknownFrame,
    Unsupported,
    UpFrame,
    Welcome,
)


def encode_up(frame: UpFrame) -> tuple[bytes, ...]:
    """Return the messages of one frame, to be sent in order with nothing between them."""
    data = _up_message(frame).SerializeToString()
    if len(data) <= MAX_MESSAGE:
        return (data,)
    return tuple(
        pb.AgentFrame(part=pb.Part(data=piece, last=last)).SerializeToString()
        for piece, last in pieces(data)
    )


def encode_down(frame: DownFrame) -> tuple[bytes, ...]:
    """Return the messages of one frame, to be sent in order with nothing between them."""
    data = _down_message(frame).SerializeToString()
    if len(data) <= MAX_MESSAGE:
        return (data,)
    return tuple(
        pb.ServerFrame(part=pb.Part(data=piece, last=last)).SerializeToString()
        for piece, last in pieces(data)
    )


class UpDecoder:
    """Reads one agent's messages in order."""

    def __init__(self) -> None:
        self._pieces = Pieces()

    def feed(self, data: bytes) -> UpFrame | None:
        """Return the frame that `data` completes, None after a piece that is not the last.

        Raises UnknownFrame (skip it and answer Unsupported) and MalformedFrame (end the call).
        """
        message = pb.AgentFrame()
        _parse(message, data)
        if message.WhichOneof("frame") != "part":
            _nothing_pending(self._pieces)
            return _up_frame(message)
        whole = self._pieces.add(message.part.data, last=message.part.last)
        if whole is None:
            return None
        message = pb.AgentFrame()
        _parse(message, whole)
        return _up_frame(message)


class DownDecoder:
    """Reads one server's messages in order."""

    def __init__(self) -> None:
        self._pieces = Pieces()

    def feed(self, data: bytes) -> DownFrame | None:
        """As `UpDecoder.feed`."""
        message = pb.ServerFrame()
        _parse(message, data)
        if message.WhichOneof("frame") != "part":
            _nothing_pending(self._pieces)
            return _down_frame(message)
        whole = self._pieces.add(message.part.data, last=message.part.last)
        if whole is None:
            return None
        message = pb.ServerFrame()
        _parse(message, whole)
        return _down_frame(message)


def _parse(message: pb.AgentFrame | pb.ServerFrame, data: bytes) -> None:
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise MalformedFrame("bytes that are no frame") from None


def _nothing_pending(collected: Pieces) -> None:
    if not collected.is_empty:
        raise MalformedFrame("a frame between the pieces of another")


def _up_message(frame: UpFrame) -> pb.AgentFrame:
    match frame:
        case Registration():
            return pb.AgentFrame(hello=reports.encode_registration(frame))
        case Heartbeat():
            return pb.AgentFrame(heartbeat=reports.encode_heartbeat(frame))
        case ShardReport():
            return pb.AgentFrame(shard=reports.encode_shard_report(frame))
        case Rejection():
            return pb.AgentFrame(rejection=reports.encode_rejection(frame))
        case Unsupported():
            return pb.AgentFrame(unsupported=pb.Unsupported(what=text(frame.what)))


def _up_frame(message: pb.AgentFrame) -> UpFrame:
    match message.WhichOneof("frame"):
        case "hello":
            return reports.decode_registration(message.hello)
        case "heartbeat":
            return reports.decode_heartbeat(message.heartbeat)
        case "shard":
            return reports.decode_shard_report(message.shard)
        case "rejection":
            return reports.decode_rejection(message.rejection)
        case "unsupported":
            return Unsupported(what=message.unsupported.what)
        case "part":
            raise MalformedFrame("a piece within a piece")
        case _:
            raise UnknownFrame("a frame of the agent's")


def _down_message(frame: DownFrame) -> pb.ServerFrame:
    match frame:
        case Welcome():
            return pb.ServerFrame(
                welcome=pb.Welcome(
                    heartbeat_interval_s=frame.heartbeat_interval_s,
                    cluster_id=frame.cluster_id,
                    server_version=frame.server_version,
                    capabilities=sorted(frame.capabilities),
                    authorities=frame.authorities,
                )
            )
        case Goodbye():
            return pb.ServerFrame(goodbye=pb.Goodbye(code=frame.code, message=text(frame.message)))
        case HeartbeatReply():
            return pb.ServerFrame(
                heartbeat_reply=pb.HeartbeatReply(
                    sequence=frame.sequence, authorities=frame.authorities
                )
            )
        case StartShard():
            return pb.ServerFrame(start=commands.encode_start(frame))
        case DrainShard():
            return pb.ServerFrame(drain=commands.encode_drain(frame))
        case StopShard():
            return pb.ServerFrame(stop=commands.encode_stop(frame))
        case SleepShard():
            return pb.ServerFrame(sleep=commands.encode_sleep(frame))
        case WakeShard():
            return pb.ServerFrame(wake=commands.encode_wake(frame))
        case AdaptShard():
            return pb.ServerFrame(adapt=commands.encode_adapt(frame))
        case BulkRequest():
            return pb.ServerFrame(bulk=encode_request(frame))
        case AdmitPeer():
            return pb.ServerFrame(
                admit=pb.AdmitPeer(node=frame.node, manifest=frame.manifest, for_s=frame.for_s)
            )
        case Unsupported():
            return pb.ServerFrame(unsupported=pb.Unsupported(what=text(frame.what)))


def _down_frame(message: pb.ServerFrame) -> DownFrame:
    match message.WhichOneof("frame"):
        case "welcome":
            return Welcome(
                heartbeat_interval_s=message.welcome.heartbeat_interval_s,
                cluster_id=message.welcome.cluster_id,
                server_version=message.welcome.server_version,
                capabilities=frozenset(message.welcome.capabilities),
                authorities=message.welcome.authorities,
            )
        case "goodbye":
            return Goodbye(code=message.goodbye.code, message=message.goodbye.message)
        case "heartbeat_reply":
            return HeartbeatReply(
                sequence=message.heartbeat_reply.sequence,
                authorities=message.heartbeat_reply.authorities,
            )
        case "start":
            return commands.decode_start(message.start)
        case "drain":
            return commands.decode_drain(message.drain)
        case "stop":
            return commands.decode_stop(message.stop)
        case "sleep":
            return commands.decode_sleep(message.sleep)
        case "wake":
            return commands.decode_wake(message.wake)
        case "adapt":
            return commands.decode_adapt(message.adapt)
        case "bulk":
            return decode_request(message.bulk)
        case "admit":
            admit = message.admit
            return AdmitPeer(node=NodeId(admit.node), manifest=admit.manifest, for_s=admit.for_s)
        case "unsupported":
            return Unsupported(what=message.unsupported.what)
        case "part":
            raise MalformedFrame("a piece within a piece")
        case _:
            raise UnknownFrame("a frame of the server's")
