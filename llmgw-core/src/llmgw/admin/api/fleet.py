"""Nodes, models, replicas, endpoints; why not; and what the router would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import anyio.to_thread

from llmgw.admin.operations import Call, Operation
from llmgw.admin.paging import PageQuery, page
from llmgw.admin.parts import RouterView
from llmgw.admin.translate import (
    by_endpoint,
    endpoint_reply,
    in_flight_by_replica,
    node_detail,
    node_reply,
    refusal_reply,
    replica_reply,
)
from llmgw.adminapi.explain import ExplainReply
from llmgw.adminapi.fleet import (
    EndpointsReply,
    ModelReply,
    ModelsReply,
    NodeDetailReply,
    NodesReply,
    ReplicasReply,
    RouteReply,
)
from llmgw.contracts.balancing import RoutedRequest
from llmgw.control.view import FleetView, ModelView, NodeView
from llmgw.domain.catalog import Scale
from llmgw.domain.ids import ReplicaId
from llmgw.domain.roles import Role as Half
from llmgw.errors import NotAvailable, RequestError
from llmgw.router.selection import Reservation
from llmgw.router.table import ModelRoute
from llmgw.store.tokens import Role


def view_of(call: Call) -> FleetView:
    """Return the fleet. Raises NotAvailable where no control plane runs."""
    if call.parts.view is None:
        raise NotAvailable(
            "no control plane runs here: this server only routes to its static endpoints; set "
            "control.enabled: on, or declare a model with a profile"
        )
    return call.parts.view


def find_node(call: Call) -> NodeView:
    """Return the node that the path names. Raises RequestError 404 `node_not_found`."""
    wanted = call.path("node")
    for node in view_of(call).nodes():
        if node.record.id == wanted:
            return node
    raise RequestError(
        f"there is no node {wanted!r}; `llmgw ctl nodes` lists them",
        status=404,
        code="node_not_found",
    )


async def nodes(call: Call) -> NodesReply:
    wall, now = call.parts.clock.wall(), call.parts.clock.monotonic()
    shown, following = page(
        view_of(call).nodes(), lambda node: node.record.id, call.query_as(PageQuery)
    )
    return NodesReply(nodes=tuple(node_reply(node, wall, now) for node in shown), next=following)


async def node(call: Call) -> NodeDetailReply:
    return node_detail(find_node(call), call.parts.clock.wall(), call.parts.clock.monotonic())


async def replicas(call: Call) -> ReplicasReply:
    wall, now = call.parts.clock.wall(), call.parts.clock.monotonic()
    loads: dict[ReplicaId, int] = {}
    if call.parts.router is not None:
        loads = in_flight_by_replica(call.parts.router.selector.states())
    shown, following = page(
        view_of(call).replicas(), lambda record: record.id, call.query_as(PageQuery)
    )
    return ReplicasReply(
        replicas=tuple(replica_reply(record.replica, wall, now, loads) for record in shown),
        next=following,
    )


async def models(call: Call) -> ModelsReply:
    return await read_models(call, () if call.parts.view is None else call.parts.view.models())


async def read_models(call: Call, placed: Sequence[ModelView]) -> ModelsReply:
    """Return the page that the query asks for, of what the view says and what is routed."""
    found = {reply.name: reply for reply in _routed(call)}
    owners = await _owners(call)
    for model in placed:
        reply = _placed(model, found.get(model.model.name))
        found[reply.name] = reply.model_copy(update={"owner": owners.get(reply.name)})
    shown, following = page(found.values(), lambda reply: reply.name, call.query_as(PageQuery))
    return ModelsReply(models=shown, next=following)


async def endpoints(call: Call) -> EndpointsReply:
    states = _router(call).selector.states()
    shown, following = page(states, lambda state: state.endpoint.id, call.query_as(PageQuery))
    return EndpointsReply(
        endpoints=tuple(endpoint_reply(state.endpoint, state) for state in shown), next=following
    )


def find_model(call: Call) -> ModelView:
    """Return the model that the path names, or an alias. Raises RequestError 404."""
    name = call.path("name")
    for model in view_of(call).models():
        if name in model.model.names:
            return model
    raise _no_model(name)


async def explain_model(call: Call) -> ExplainReply:
    view, model = view_of(call), find_model(call)
    refusal = await anyio.to_thread.run_sync(view.explain_model, model.model.name)
    # Where there is room, it may be what runs there that fails.
    refusal = refusal or model.status.refusal
    summary = f"{model.status.state.value}: {_ready_and_wanted(model)}"
    if refusal is None:
        summary += "; another replica could start now"
    return ExplainReply(
        subject=f"model {model.model.name}",
        summary=summary,
        refusals=() if refusal is None else (refusal_reply(refusal),),
    )


def _ready_and_wanted(model: ModelView) -> str:
    """Return e.g. `1 ready, 0 to 4 wanted` or `1 ready, 1 wanted`; of each role where replicas have one."""
    found = Counter(endpoint.role for endpoint in model.endpoints)
    roles = tuple(Half) if model.model.has_roles else (None,)
    return "; ".join(
        f"{f'{role} ' if role else ''}{found[role]} ready, {_range(scale)} wanted"
        for role, scale in zip(roles, model.model.scales, strict=True)
    )


def _range(scale: Scale) -> str:
    return str(scale.min) if scale.min == scale.max else f"{scale.min} to {scale.max}"


async def explain_node(call: Call) -> ExplainReply:
    view, found = view_of(call), find_node(call)
    refusals = await anyio.to_thread.run_sync(view.explain_node, found.record.id)
    summary = found.record.state.value + (", cordoned" if found.record.cordoned else "")
    if found.record.because:
        summary += f" ({found.record.because})"
    if not refusals:
        summary += "; every model could be placed here"
    return ExplainReply(
        subject=f"node {found.record.id}",
        summary=summary,
        refusals=tuple(refusal_reply(refusal) for refusal in refusals),
    )


async def route(call: Call) -> RouteReply:
    router, name = _router(call), call.path("name")
    found = router.table.find(name)
    if found is None:
        raise _no_model(name)
    states = by_endpoint(router.selector.states())
    chosen, because = _choose(router, found)
    return RouteReply(
        model=found.name,
        state=found.state.value,
        chosen=chosen,
        because=because,
        endpoints=tuple(
            endpoint_reply(endpoint, states.get(endpoint.id))
            for half in found.halves
            for endpoint in half.endpoints
        ),
        refusal=found.refusal.sentence if found.refusal else None,
    )


def _choose(router: RouterView, found: ModelRoute) -> tuple[str | None, str]:
    # The real choice, undone at once: an imitation would be wrong as soon as a balancer learns
    # something. Nothing runs between the two, so no request sees the slot as taken.
    request = RoutedRequest(model=found.name, session_key=None, prompt=b"", body_bytes=0, seed=0.5)
    answer = router.selector.reserve(found, request)
    if not isinstance(answer, Reservation):
        return None, answer.why.value
    chosen, because = answer.endpoint.id, answer.because
    answer.undo()
    return chosen, because


def _router(call: Call) -> RouterView:
    if call.parts.router is None:
        raise NotAvailable("no router runs in this process")
    return call.parts.router


def _routed(call: Call) -> list[ModelReply]:
    router = call.parts.router
    if router is None:
        return []
    states = by_endpoint(router.selector.states())
    queued = router.usage().queued
    replies = []
    for found in router.table.routes:
        members = (item for half in found.halves for item in half.endpoints)
        here = [states[item.id] for item in members if item.id in states]
        replies.append(
            ModelReply(
                name=found.name,
                aliases=found.names[1:],
                state=found.state.value,
                ready=sum(state.is_healthy for state in here),
                # A shared request has a slot of both its engines.
                in_flight=sum(
                    state.in_flight for state in here if state.endpoint.role is not Half.PREFILL
                ),
                queued=queued.get(found.name, 0),
                expected_wait_s=found.expected_wait_s,
                refusal=refusal_reply(found.refusal) if found.refusal else None,
            )
        )
    return replies


def _placed(model: ModelView, routed: ModelReply | None) -> ModelReply:
    refusal, scales = model.status.refusal, model.model.scales
    return ModelReply(
        name=model.model.name,
        aliases=model.model.aliases,
        state=model.status.state.value,
        ready=routed.ready if routed else len(model.endpoints),
        wanted_min=sum(scale.min for scale in scales) if model.model.profiles else None,
        wanted_max=sum(scale.max for scale in scales) if model.model.profiles else None,
        in_flight=routed.in_flight if routed else 0,
        queued=routed.queued if routed else 0,
        expected_wait_s=model.status.expected_wait_s,
        refusal=refusal_reply(refusal) if refusal else None,
    )


async def _owners(call: Call) -> dict[str, str]:
    store = call.parts.store
    if store is None:
        return {}
    entries = await store.run(store.catalog.entries)
    return {entry.model.name: entry.owner for entry in entries}


def _no_model(name: str) -> RequestError:
    return RequestError(
        f"there is no model {name!r}; `llmgw ctl models` lists them",
        status=404,
        code="model_not_found",
    )


OPERATIONS = (
    Operation(
        method="GET",
        path="/nodes",
        role=Role.VIEWER,
        summary="All nodes.",
        handler=nodes,
        reply=NodesReply,
        query=PageQuery,
    ),
    Operation(
        method="GET",
        path="/nodes/{node}",
        role=Role.VIEWER,
        summary="One node with its devices, engines, weights and replicas.",
        handler=node,
        reply=NodeDetailReply,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/models",
        role=Role.VIEWER,
        summary="All models that clients may ask for.",
        handler=models,
        reply=ModelsReply,
        query=PageQuery,
    ),
    Operation(
        method="GET",
        path="/replicas",
        role=Role.VIEWER,
        summary="All replicas with their shards.",
        handler=replicas,
        reply=ReplicasReply,
        query=PageQuery,
    ),
    Operation(
        method="GET",
        path="/endpoints",
        role=Role.VIEWER,
        summary="All endpoints of this server's router.",
        handler=endpoints,
        reply=EndpointsReply,
        query=PageQuery,
    ),
    Operation(
        method="GET",
        path="/explain/model/{name:path}",
        role=Role.VIEWER,
        summary="Why another replica of a model could not start now.",
        handler=explain_model,
        reply=ExplainReply,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/explain/node/{node}",
        role=Role.VIEWER,
        summary="Why a node gets no further replicas.",
        handler=explain_node,
        reply=ExplainReply,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/route/{name:path}",
        role=Role.VIEWER,
        summary="What this server's router would do with a request for a model now.",
        handler=route,
        reply=RouteReply,
        errors=(404,),
    ),
)
