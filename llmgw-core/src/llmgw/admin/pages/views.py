"""What each page shows: which of the API's replies, under which names of its template."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from llmgw.admin.api import access, catalog, fleet, history, progress, work
from llmgw.admin.operations import Call
from llmgw.admin.pages.logs import download, logs
from llmgw.admin.pages.overview import overview
from llmgw.admin.pages.plots import bars
from llmgw.admin.pages.texts import moment
from llmgw.admin.paging import PageQuery
from llmgw.adminapi.work import WeightsReply
from llmgw.errors import LlmgwError
from llmgw.store.tokens import Role

Shown = Mapping[str, Any]

_DAY_S, _DAYS = 86_400.0, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One page."""

    path: str  #: below `/admin`
    title: str
    template: str  #: empty: the answer is no page
    role: Role
    load: Callable[[Call], Awaitable[Shown | Response]]
    in_menu: bool = True


async def nodes(call: Call) -> Shown:
    return {"nodes": (await fleet.nodes(_asking(call, PageQuery()))).nodes}


async def node(call: Call) -> Shown:
    shown = await fleet.node(call)
    weights: tuple[WeightsReply, ...] = ()
    if shown.connected:
        try:
            weights = (await work.weights(call)).weights
        except LlmgwError:
            pass  # what it reported last is shown then
    return {"node": shown, "weights": weights}


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


async def rollouts(call: Call) -> Shown:
    changes = await catalog.history(_asking(call, catalog.HistoryQuery(limit=20)))
    return {"rollouts": (await progress.rollouts(call)).rollouts, "changes": changes.changes}


async def under_way(call: Call) -> Shown:
    return {"progress": await progress.progress(call)}


async def events(call: Call) -> Shown:
    before = call.request.query_params.get("before", "")
    query = history.EventsQuery(limit=100, before=int(before) if before.isdecimal() else None)
    reply = await history.events(_asking(call, query))
    return {"events": reply.events, "next": reply.next}


async def playground(call: Call) -> Shown:
    listed = (await models(call))["models"]
    return {"models": sorted(listed, key=lambda item: (item.state != "serving", item.name))}


async def keys(call: Call) -> Shown:
    usage = await history.usage(_asking(call, history.UsageQuery(by="key,model")))
    by_day = await history.usage(_asking(call, history.UsageQuery(by="day")))
    rows = {moment(row.start_at)[:10]: row for row in by_day.rows}
    last = call.parts.clock.wall()
    days = [moment(last - back * _DAY_S)[:10] for back in reversed(range(_DAYS))]
    requests = [(day, float(rows[day].requests) if day in rows else 0.0) for day in days]
    tokens = [
        (day, float(rows[day].prompt_tokens + rows[day].completion_tokens) if day in rows else 0.0)
        for day in days
    ]
    return {
        "keys": (await access.keys(_asking(call, PageQuery()))).keys,
        "usage": usage.rows,
        "requests_by_day": tuple(bars(requests)) if rows else (),
        "tokens_by_day": tuple(bars(tokens)) if rows else (),
    }


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
    View(path="/rollouts", title="Rollouts", template="rollouts", role=Role.VIEWER, load=rollouts),
    View(
        path="/progress",
        title="Under way",
        template="progress",
        role=Role.VIEWER,
        load=under_way,
    ),
    View(path="/events", title="Events", template="events", role=Role.VIEWER, load=events),
    View(path="/logs", title="Logs", template="logs", role=Role.OPERATOR, load=logs),
    View(
        path="/logs/download",
        title="",
        template="",
        role=Role.OPERATOR,
        load=download,
        in_menu=False,
    ),
    View(
        path="/playground",
        title="Playground",
        template="playground",
        role=Role.OPERATOR,
        load=playground,
    ),
    View(path="/keys", title="Keys and usage", template="keys", role=Role.VIEWER, load=keys),
)
