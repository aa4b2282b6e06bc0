"""What operators do to nodes, and what nodes do for operators: logs, weights, engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Annotated

from pydantic import Field
from starlette.responses import Response, StreamingResponse

from llmgw.admin.api.fleet import find_node
from llmgw.admin.operations import Call, Changed, Operation
from llmgw.adminapi.reply import Done, Request
from llmgw.adminapi.work import (
    DrainRequest,
    EngineRequest,
    FenceRequest,
    LogSourceReply,
    LogSourcesReply,
    NodeWeightsReply,
    ReasonRequest,
    WeightsReply,
    WeightsRequest,
)
from llmgw.contracts.dispatch import EngineInstaller, Heard, LogReader, WeightManager
from llmgw.domain.ids import NodeId
from llmgw.errors import NotAvailable
from llmgw.store.nodes import KnownNode
from llmgw.store.tokens import Role


class LogQuery(Request):
    """Which log, and how much of it."""

    source: Annotated[str, Field(max_length=300)] = "agent"
    """`agent`, or a shard's id; `GET …/logs/sources` lists them."""
    lines: Annotated[int, Field(ge=1, le=10_000)] = 200
    follow: bool = False


class RefQuery(Request):
    """Which weights."""

    ref: Annotated[str, Field(min_length=3, max_length=1000)]


async def cordon(call: Call) -> Changed:
    reason = call.body_as(ReasonRequest).reason or "cordoned"
    return await _decide(call, "node_cordoned", lambda id_: call.store.nodes.cordon(id_, reason))


async def uncordon(call: Call) -> Changed:
    return await _decide(call, "node_uncordoned", call.store.nodes.uncordon)


async def drain(call: Call) -> Changed:
    request = call.body_as(DrainRequest)
    reason = request.reason or "drained"
    return await _decide(
        call,
        "node_drained",
        lambda id_: call.store.nodes.drain(id_, reason, limit_s=request.limit_s),
    )


async def fence(call: Call) -> Changed:
    reason = call.body_as(FenceRequest).reason
    return await _decide(call, "node_fenced", lambda id_: call.store.nodes.fence(id_, reason))


async def forget(call: Call) -> Changed:
    id_ = NodeId(call.path("node"))
    await call.store.run(lambda: call.store.nodes.forget(id_))
    await call.parts.follow()
    return Changed(reply=Done(), kind="node_forgotten", subject=f"node {id_}", message="forgotten")


async def _decide(call: Call, kind: str, decide: Callable[[NodeId], KnownNode]) -> Changed:
    id_ = NodeId(call.path("node"))
    known = {node.id: node for node in await call.store.run(call.store.nodes.list)}
    after = await call.store.run(lambda: decide(id_))
    await call.parts.follow()
    return Changed(
        reply=Done(),
        kind=kind,
        subject=f"node {id_}",
        message=after.fenced or after.cordoned or "back in use",
        before=_intent(known.get(id_)),
        after=_intent(after),
    )


def _intent(node: KnownNode | None) -> dict[str, object] | None:
    if node is None:
        return None
    return {
        "cordoned": node.cordoned,
        "draining": node.draining,
        "drain_until": node.drain_until,
        "fenced": node.fenced,
    }


async def log_sources(call: Call) -> LogSourcesReply:
    id_ = find_node(call).record.id
    sources = await _log_reader(call).log_sources(id_)
    return LogSourcesReply(
        sources=tuple(
            LogSourceReply(name=item.name, description=item.description, lines=item.lines)
            for item in sources
        )
    )


async def logs(call: Call) -> Response:
    id_, query = find_node(call).record.id, call.query_as(LogQuery)
    reader = _log_reader(call)
    lines = reader.read_log(id_, source=query.source, lines=query.lines, follow=query.follow)
    # A node that does not answer must be an error, not an empty log that began well.
    first = await anext(lines, None)

    async def body() -> AsyncIterator[bytes]:
        if first is not None:
            yield _line(first)
            async for line in lines:
                yield _line(line)

    return StreamingResponse(body(), media_type="text/plain; charset=utf-8")


async def read_lines(call: Call) -> list[str]:
    """Return the last lines of a log of a node, without following it."""
    id_, query = find_node(call).record.id, call.query_as(LogQuery)
    lines = _log_reader(call).read_log(id_, source=query.source, lines=query.lines, follow=False)
    return [line.rstrip("\n") async for line in lines]


async def server_log(call: Call) -> Response:
    lines = list(call.parts.server_log)[-call.query_as(LogQuery).lines :]
    return Response(b"".join(map(_line, lines)), media_type="text/plain; charset=utf-8")


def _line(text: str) -> bytes:
    return text.rstrip("\n").encode("utf-8", "backslashreplace") + b"\n"


async def weights(call: Call) -> NodeWeightsReply:
    id_ = find_node(call).record.id
    entries = await _weight_manager(call).list_weights(id_)
    return NodeWeightsReply(
        weights=tuple(
            WeightsReply(
                ref=item.ref,
                size_bytes=item.size_bytes,
                total_bytes=item.total_bytes,
                state=item.state,
                used_by=item.used_by,
            )
            for item in entries
        )
    )


async def pull_weights(call: Call) -> Changed:
    ref = call.body_as(WeightsRequest).ref
    with _job(call, "weights", ref) as heard:
        id_ = find_node(call).record.id
        await _weight_manager(call).pull_weights(id_, ref, heard=heard)
    return _done("weights_pulled", id_, ref)


async def remove_weights(call: Call) -> Changed:
    id_, ref = find_node(call).record.id, call.query_as(RefQuery).ref
    await _weight_manager(call).remove_weights(id_, ref)
    return _done("weights_removed", id_, ref)


async def install_engine(call: Call) -> Changed:
    request = call.body_as(EngineRequest)
    with _job(call, "engine", f"{request.engine} {request.version}") as heard:
        id_ = find_node(call).record.id
        await _engine_installer(call).install_engine(
            id_, request.engine, request.version, heard=heard
        )
    return _done("engine_installed", id_, f"{request.engine} {request.version}")


async def remove_engine(call: Call) -> Changed:
    id_, engine, version = find_node(call).record.id, call.path("engine"), call.path("version")
    await _engine_installer(call).remove_engine(id_, engine, version)
    return _done("engine_removed", id_, f"{engine} {version}")


def _job(call: Call, kind: str, subject: str) -> AbstractContextManager[Heard]:
    node, parts = NodeId(call.path("node")), call.parts
    return parts.jobs.running(node, kind, subject, who=call.caller.name, clock=parts.clock)


def _done(kind: str, node: NodeId, what: str) -> Changed:
    return Changed(reply=Done(), kind=kind, subject=f"node {node}", message=what)


def _log_reader(call: Call) -> LogReader:
    if isinstance(call.parts.dispatcher, LogReader):
        return call.parts.dispatcher
    raise _unable("read logs of nodes")


def _weight_manager(call: Call) -> WeightManager:
    if isinstance(call.parts.dispatcher, WeightManager):
        return call.parts.dispatcher
    raise _unable("look after weights")


def _engine_installer(call: Call) -> EngineInstaller:
    if isinstance(call.parts.dispatcher, EngineInstaller):
        return call.parts.dispatcher
    raise _unable("install engines")


def _unable(what: str) -> NotAvailable:
    return NotAvailable(f"what connects this server to its nodes cannot {what}")


_NODE = "/nodes/{node}"
OPERATIONS = (
    Operation(
        method="POST",
        path=_NODE + "/cordon",
        role=Role.OPERATOR,
        summary="Give a node no new replica.",
        handler=cordon,
        reply=Done,
        body=ReasonRequest,
        changes=True,
        errors=(404,),
    ),
    Operation(
        method="POST",
        path=_NODE + "/uncordon",
        role=Role.OPERATOR,
        summary="Take back a cordon or a drain.",
        handler=uncordon,
        reply=Done,
        changes=True,
        errors=(404,),
    ),
    Operation(
        method="POST",
        path=_NODE + "/drain",
        role=Role.OPERATOR,
        summary="Move a node's replicas away, replacements first where there is room.",
        handler=drain,
        reply=Done,
        body=DrainRequest,
        changes=True,
        errors=(404,),
    ),
    Operation(
        method="POST",
        path=_NODE + "/fence",
        role=Role.ADMIN,
        summary="Vouch that nothing runs on a node: its devices count as free.",
        handler=fence,
        reply=Done,
        body=FenceRequest,
        changes=True,
        errors=(404,),
    ),
    Operation(
        method="DELETE",
        path=_NODE,
        role=Role.ADMIN,
        summary="Forget a node that will not come back.",
        handler=forget,
        reply=Done,
        changes=True,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path=_NODE + "/logs/sources",
        role=Role.OPERATOR,
        summary="The logs that a node offers.",
        handler=log_sources,
        reply=LogSourcesReply,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path=_NODE + "/logs",
        role=Role.OPERATOR,
        summary="The last lines of a log of a node, and what follows.",
        handler=logs,
        query=LogQuery,
        media_type="text/plain",
        errors=(404, 409),
    ),
    Operation(
        method="GET",
        path="/logs",
        role=Role.OPERATOR,
        summary="The last lines of this server's own log.",
        handler=server_log,
        query=LogQuery,
        media_type="text/plain",
    ),
    Operation(
        method="GET",
        path=_NODE + "/weights",
        role=Role.VIEWER,
        summary="Weights on a node.",
        handler=weights,
        reply=NodeWeightsReply,
        errors=(404,),
    ),
    Operation(
        method="POST",
        path=_NODE + "/weights",
        role=Role.OPERATOR,
        summary="Have a node fetch weights.",
        handler=pull_weights,
        reply=Done,
        body=WeightsRequest,
        changes=True,
        errors=(404, 409),
    ),
    Operation(
        method="DELETE",
        path=_NODE + "/weights",
        role=Role.OPERATOR,
        summary="Remove weights that no shard uses.",
        handler=remove_weights,
        reply=Done,
        query=RefQuery,
        changes=True,
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path=_NODE + "/engines",
        role=Role.ADMIN,
        summary="Have a node install an engine.",
        handler=install_engine,
        reply=Done,
        body=EngineRequest,
        changes=True,
        errors=(404, 409),
    ),
    Operation(
        method="DELETE",
        path=_NODE + "/engines/{engine}/{version}",
        role=Role.ADMIN,
        summary="Remove an installed engine.",
        handler=remove_engine,
        reply=Done,
        changes=True,
        errors=(404, 409),
    ),
)
