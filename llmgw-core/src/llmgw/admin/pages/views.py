"""What each page shows: which of the API's replies, under which names of its template."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from llmgw.admin.api import access, fleet, history, status, work
from llmgw.admin.operations import Call
from llmgw.admin.pages.texts import bars, moment
from llmgw.admin.paging import PageQuery
from llmgw.adminapi.history import UsageReply
from llmgw.adminapi.work import LogSourceReply
from llmgw.errors import LlmgwError, NotAvailable
from llmgw.store.tokens import Role

Shown = Mapping[str, Any]

_HOUR_S, _HOURS = 3600.0, 24
_LOG_LINES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One page."""

    path: str  #: below `/admin`
    title: str
    template: str
    role: Role
    load: Callable[[Call], Awaitable[Shown]]
    in_menu: bool = True


async def overview(call: Call) -> Shown:
    placed = () if call.parts.view is None else call.parts.view.models()
    models = await fleet.read_models(_asking(call, PageQuery(limit=50)), placed)
    shown: dict[str, Any] = {
        "cluster": await status.read_status(call.parts, placed),
        "models": models.models,
        "events": (),
        "hours": (),
    }
    if call.parts.store is not None:
        events = await history.events(_asking(call, history.EventsQuery(limit=8)))
        shown |= {"events": events.events, "hours": _hours(await _last_day(call), call)}
    return shown


async def nodes(call: Call) -> Shown:
    return {"nodes": (await fleet.nodes(_asking(call, PageQuery()))).nodes}


async def node(call: Call) -> Shown:
    return {"node": await fleet.node(call)}


async def models(call: Call) -> Shown:
    return {"models": (await fleet.models(_asking(call, PageQuery()))).models}


async def model(call: Call) -> Shown:
    replicas = (await fleet.replicas(_asking(call, PageQuery()))).replicas
    explained = await fleet.explain_model(call)
    name = explained.subject.removeprefix("model ")
    return {
        "name": name,
        "explained": explained,
        "replicas": tuple(item for item in replicas if item.model == name),
    }


async def replicas(call: Call) -> Shown:
    return {"replicas": (await fleet.replicas(_asking(call, PageQuery()))).replicas}


async def events(call: Call) -> Shown:
    before = call.request.query_params.get("before", "")
    query = history.EventsQuery(limit=100, before=int(before) if before.isdecimal() else None)
    reply = await history.events(_asking(call, query))
    return {"events": reply.events, "next": reply.next}


async def logs(call: Call) -> Shown:
    """Return the log of a node, or of this server where none is chosen."""
    chosen = call.request.query_params
    node_id, source = chosen.get("node", ""), chosen.get("source", "agent")
    wanted = chosen.get("search", "")
    sources: tuple[LogSourceReply, ...] = ()
    problem = ""
    lines: list[str] = []
    try:
        if node_id:
            at_node = replace(call, path_values={"node": node_id})
            sources = (await work.log_sources(at_node)).sources
            query = work.LogQuery(source=source, lines=_LOG_LINES)
            lines = await work.read_lines(_asking(at_node, query))
        else:
            lines = list(call.parts.server_log)[-_LOG_LINES:]
    except LlmgwError as error:
        problem = str(error)
    return {
        "nodes": await _node_ids(call),
        "node_id": node_id,
        "source": source,
        "sources": sources,
        "search": wanted,
        "lines": [line for line in lines if wanted.lower() in line.lower()],
        "problem": problem,
    }


async def keys(call: Call) -> Shown:
    usage = await history.usage(_asking(call, history.UsageQuery(by="key,model")))
    days = await history.usage(_asking(call, history.UsageQuery(by="day")))
    plot = [(moment(row.start_at)[:10], float(row.requests)) for row in days.rows]
    return {
        "keys": (await access.keys(_asking(call, PageQuery()))).keys,
        "usage": usage.rows,
        "days": tuple(bars(plot)),
    }


async def _node_ids(call: Call) -> list[str]:
    try:
        return [item.record.id for item in fleet.view_of(call).nodes()]
    except NotAvailable:
        return []


async def _last_day(call: Call) -> UsageReply:
    since = call.parts.clock.wall() - _HOURS * _HOUR_S
    return await history.usage(_asking(call, history.UsageQuery(by="hour", since=since)))


def _hours(usage: UsageReply, call: Call) -> tuple[Any, ...]:
    by_hour = {int((row.start_at or 0) // _HOUR_S): row.requests for row in usage.rows}
    last = int(call.parts.clock.wall() // _HOUR_S)
    hours = range(last - _HOURS + 1, last + 1)
    return tuple(
        bars([(moment(hour * _HOUR_S)[11:16], float(by_hour.get(hour, 0))) for hour in hours])
    )


def _asking(call: Call, query: BaseModel) -> Call:
    return replace(call, query=query)


VIEWS = (
    View(path="", title="Overview", template="overview", role=Role.VIEWER, load=overview),
    View(path="/nodes", title="Nodes", template="nodes", role=Role.VIEWER, load=nodes),
    View(
        path="/nodes/{node}",
        title="Node",
        template="node",
        role=Role.VIEWER,
        load=node,
        in_menu=False,
    ),
    View(path="/models", title="Models", template="models", role=Role.VIEWER, load=models),
    View(
        path="/models/{name:path}",
        title="Model",
        template="model",
        role=Role.VIEWER,
        load=model,
        in_menu=False,
    ),
    View(path="/replicas", title="Replicas", template="replicas", role=Role.VIEWER, load=replicas),
    View(path="/events", title="Events", template="events", role=Role.VIEWER, load=events),
    View(path="/logs", title="Logs", template="logs", role=Role.OPERATOR, load=logs),
    View(
        path="/playground",
        title="Playground",
        template="playground",
        role=Role.OPERATOR,
        load=models,
    ),
    View(path="/keys", title="Keys and usage", template="keys", role=Role.VIEWER, load=keys),
)
