"""The cluster in one glance, and what monitoring asks."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

import anyio.lowlevel
from starlette.responses import PlainTextResponse, Response

from llmgw.admin.operations import Call, Operation
from llmgw.admin.parts import AdminParts
from llmgw.admin.pulse import Beat
from llmgw.admin.translate import count_by_state
from llmgw.adminapi.access import WhoReply
from llmgw.adminapi.fleet import LeaderReply, RatesReply, StatusReply
from llmgw.control.view import FleetView, ModelView
from llmgw.domain.plans import Refusal
from llmgw.domain.replicas import ReplicaState
from llmgw.errors import NotAvailable, TransientError
from llmgw.store.tokens import Role

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NEEDS_A_PERSON = (ReplicaState.FAILED, ReplicaState.UNKILLABLE)


async def status(call: Call) -> StatusReply:
    models = () if call.parts.view is None else call.parts.view.models()
    return await read_status(call.parts, models)


async def read_status(parts: AdminParts, models: Sequence[ModelView]) -> StatusReply:
    """Return the overview, from memory only: it must answer when everything else is away.

    models: what the view says of them, empty without a control plane.
    """
    fields: dict[str, object] = {}
    problems = list(parts.problems())
    if parts.view is not None:
        fields |= await _fleet_fields(parts.view, models, problems)
    if parts.router is not None:
        states = parts.router.selector.states()
        fields |= {
            "endpoints": len(states),
            "in_flight": sum(state.in_flight for state in states),
            "queued": sum(parts.router.usage().queued.values()),
        }
        if parts.view is None:
            fields["models"] = count_by_state(
                route.state.value for route in parts.router.table.routes
            )
        problems += [
            f"endpoint {state.endpoint.id} is {state.condition.value}"
            for state in states
            if not state.is_healthy and not state.endpoint.draining
        ]
    return StatusReply.model_validate(
        {
            "version": metadata.version("llmgw-core"),
            "server": parts.server,
            "cluster_id": parts.store.cluster_id if parts.store else None,
            "now": parts.clock.wall(),
            "rates": _rates(parts.pulse.newest()),
            "problems": tuple(problems),
            **fields,
        }
    )


def _rates(beat: Beat | None) -> RatesReply | None:
    if beat is None:
        return None
    return RatesReply(
        requests_per_s=beat.requests_per_s,
        failed_per_s=beat.failed_per_s,
        output_tokens_per_s=beat.tokens_per_s,
        first_token_p50_s=beat.first_token_p50_s,
        first_token_p99_s=beat.first_token_p99_s,
    )


async def _fleet_fields(
    view: FleetView, models: Sequence[ModelView], problems: list[str]
) -> dict[str, object]:
    # Each look at a thousand nodes takes some 30 ms; heartbeats must not wait for all of them.
    await anyio.lowlevel.checkpoint()
    standing = view.standing()
    await anyio.lowlevel.checkpoint()
    nodes = view.nodes()
    replicas = {replica.id: replica for node in nodes for replica in node.replicas}.values()
    if not standing.leading and standing.leader is None:
        problems.append("no server leads: nothing is planned until one does")
    if standing.braked:
        problems.append("many nodes fell silent at once: none is given up until they are back")
    problems += [
        _said_of(model.model.name, model.status.refusal)
        for model in models
        if model.status.refusal is not None
    ]
    problems += [
        f"replica {replica.id} is {replica.state.value}: {replica.reason}"
        for replica in replicas
        if replica.state in _NEEDS_A_PERSON
    ]
    problems += [
        f"node {node.record.id} is {node.record.state.value}"
        for node in nodes
        if node.record.state.value != "ready"
    ]
    booked = sum(len(node.booked) for node in nodes)
    return {
        "leadership": LeaderReply(
            here=standing.leading,
            leader=standing.leader,
            epoch=standing.epoch,
            settled=standing.settled,
        ),
        "nodes": count_by_state(node.record.state.value for node in nodes),
        "devices_total": sum(
            len(node.record.inventory.devices) for node in nodes if node.record.inventory
        ),
        "devices_used": booked,
        "models": count_by_state(model.status.state.value for model in models),
        "replicas": count_by_state(replica.state.value for replica in replicas),
    }


def _said_of(model: str, refusal: Refusal) -> str:
    """Return a sentence that names the model once."""
    names = refusal.sentence.startswith(f"{model} ")
    return f"model {refusal.sentence}" if names else f"model {model}: {refusal.sentence}"


async def who(call: Call) -> WhoReply:
    return WhoReply(name=call.caller.name, role=call.caller.role.value)


async def metrics(call: Call) -> Response:
    if call.parts.metrics is None:
        raise NotAvailable("this server has no metrics")
    return Response(await call.parts.metrics(), media_type=_METRICS_TYPE)


async def healthz(_call: Call) -> Response:
    return PlainTextResponse("ok\n")


async def readyz(call: Call) -> Response:
    view = call.parts.view
    if view is not None and not view.standing().settled:
        raise TransientError("settling: waiting for nodes to report")
    return PlainTextResponse("ok\n")


OPERATIONS = (
    Operation(
        method="GET",
        path="/status",
        role=Role.VIEWER,
        summary="The cluster in one glance.",
        handler=status,
        reply=StatusReply,
    ),
    Operation(
        method="GET",
        path="/whoami",
        role=Role.VIEWER,
        summary="Whose token this is.",
        handler=who,
        reply=WhoReply,
    ),
    Operation(
        method="GET",
        path="/metrics",
        role=Role.VIEWER,
        summary="Metrics in Prometheus' text format.",
        handler=metrics,
        media_type="text/plain",
    ),
    Operation(
        method="GET",
        path="/healthz",
        role=None,
        summary="Whether the process lives.",
        handler=healthz,
        media_type="text/plain",
    ),
    Operation(
        method="GET",
        path="/readyz",
        role=None,
        summary="Whether the control plane has settled.",
        handler=readyz,
        media_type="text/plain",
    ),
)
