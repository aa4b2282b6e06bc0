"""Requests for bulk, and the frames that answer them."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from llmgw.contracts.dispatch import LogSource, WeightsEntry
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.codec.reports import decode_progress, encode_progress
from llmgw_agent.wire.codec.scalars import text
from llmgw_agent.wire.frames import (
    Ask,
    BulkDone,
    BulkFrame,
    BulkOpening,
    BulkProblem,
    BulkRequest,
    BulkWorking,
    InstallEngine,
    ListLogs,
    ListWeights,
    LogLines,
    LogSources,
    MalformedFrame,
    PullWeights,
    ReadLog,
    RemoveEngine,
    RemoveWeights,
    UnknownFrame,
    WeightsList,
)


def encode_request(request: BulkRequest) -> pb.BulkRequest:
    match request.ask:
        case ListLogs():
            return pb.BulkRequest(id=request.id, list_logs=pb.ListLogs())
        case ReadLog() as ask:
            return pb.BulkRequest(
                id=request.id,
                read_log=pb.ReadLog(source=ask.source, lines=ask.lines, follow=ask.follow),
            )
        case ListWeights():
            return pb.BulkRequest(id=request.id, list_weights=pb.ListWeights())
        case PullWeights(ref=ref):
            return pb.BulkRequest(id=request.id, pull_weights=pb.PullWeights(ref=ref))
        case RemoveWeights(ref=ref):
            return pb.BulkRequest(id=request.id, remove_weights=pb.RemoveWeights(ref=ref))
        case InstallEngine() as ask:
            return pb.BulkRequest(
                id=request.id,
                install_engine=pb.InstallEngine(engine=ask.engine, version=ask.version),
            )
        case RemoveEngine() as ask:
            return pb.BulkRequest(
                id=request.id,
                remove_engine=pb.RemoveEngine(engine=ask.engine, version=ask.version),
            )


def decode_request(message: pb.BulkRequest) -> BulkRequest:
    """Raises UnknownFrame naming the ask, if it is not known."""
    return BulkRequest(id=message.id, ask=_ask(message))


def _ask(message: pb.BulkRequest) -> Ask:
    match message.WhichOneof("ask"):
        case "list_logs":
            return ListLogs()
        case "read_log":
            ask = message.read_log
            return ReadLog(source=ask.source, lines=ask.lines, follow=ask.follow)
        case "list_weights":
            return ListWeights()
        case "pull_weights":
            return PullWeights(ref=message.pull_weights.ref)
        case "remove_weights":
            return RemoveWeights(ref=message.remove_weights.ref)
        case "install_engine":
            return InstallEngine(
                engine=message.install_engine.engine, version=message.install_engine.version
            )
        case "remove_engine":
            return RemoveEngine(
                engine=message.remove_engine.engine, version=message.remove_engine.version
            )
        case _:
            raise UnknownFrame("a bulk request")


def encode_bulk(frame: BulkFrame) -> bytes:
    """Return one message. Whoever makes LogLines keeps each below 1 MiB."""
    match frame:
        case BulkOpening(id=identity):
            message = pb.BulkFrame(opening=pb.BulkOpening(id=identity))
        case LogSources(sources=sources):
            message = pb.BulkFrame(
                log_sources=pb.LogSources(
                    sources=[
                        pb.LogSource(
                            name=item.name, description=text(item.description), lines=item.lines
                        )
                        for item in sources
                    ]
                )
            )
        case LogLines(lines=lines):
            message = pb.BulkFrame(log_lines=pb.LogLines(lines=lines))
        case WeightsList(entries=entries):
            message = pb.BulkFrame(
                weights=pb.WeightsList(
                    entries=[
                        pb.WeightsEntry(
                            ref=text(item.ref),
                            size_bytes=item.size_bytes,
                            state=item.state,
                            used_by=item.used_by,
                            total_bytes=item.total_bytes,
                        )
                        for item in entries
                    ]
                )
            )
        case BulkWorking(progress=progress):
            message = pb.BulkFrame(
                working=pb.BulkWorking(progress=encode_progress(progress) if progress else None)
            )
        case BulkDone():
            message = pb.BulkFrame(done=pb.BulkDone())
        case BulkProblem() as problem:
            message = pb.BulkFrame(
                problem=pb.BulkProblem(message=text(problem.message), transient=problem.transient)
            )
    return message.SerializeToString()


def decode_bulk(data: bytes) -> BulkFrame:
    """Raises UnknownFrame and MalformedFrame; both end the call."""
    message = pb.BulkFrame()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise MalformedFrame("bytes that are no frame") from None
    match message.WhichOneof("frame"):
        case "opening":
            return BulkOpening(id=message.opening.id)
        case "log_sources":
            return LogSources(
                sources=tuple(
                    LogSource(name=item.name, description=item.description, lines=item.lines)
                    for item in message.log_sources.sources
                )
            )
        case "log_lines":
            return LogLines(lines=tuple(message.log_lines.lines))
        case "weights":
            return WeightsList(
                entries=tuple(
                    WeightsEntry(
                        ref=item.ref,
                        size_bytes=item.size_bytes,
                        state=item.state,
                        used_by=tuple(item.used_by),
                        total_bytes=item.total_bytes if item.HasField("total_bytes") else None,
                    )
                    for item in message.weights.entries
                )
            )
        case "working":
            working = message.working
            return BulkWorking(
                progress=decode_progress(working.progress) if working.HasField("progress") else None
            )
        case "done":
            return BulkDone()
        case "problem":
            return BulkProblem(message=message.problem.message, transient=message.problem.transient)
        case _:
            raise UnknownFrame("a bulk frame")
