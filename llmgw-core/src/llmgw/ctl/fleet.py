"""What there is and how it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from llmgw.ctl.session import CtlCommand, Session, pass_session, terminal_width

if TYPE_CHECKING:
    from llmgw.adminapi.fleet import (
        EndpointReply,
        ModelReply,
        NodeDetailReply,
        NodeReply,
        RatesReply,
        ReplicaReply,
        StatusReply,
    )

#: Where a thousand nodes are away at once, the figures above them must stay on the screen.
_MOST_PROBLEMS = 20
_LAST_LINES = 5  #: of an engine that failed; the whole log is one command away


@click.command(cls=CtlCommand, examples=["llmgw ctl status", "llmgw ctl --json status | jq .nodes"])
@pass_session
def status(session: Session) -> None:
    """The cluster in one glance."""
    from llmgw.adminapi.fleet import StatusReply

    raw = session.client.get("/status")
    session.show_reply(raw, StatusReply, status_text)


def status_text(reply: StatusReply) -> str:
    """Return the overview, problems last because they are read first on a terminal."""
    from llmgw.ctl.render import counts, fields, readable

    leading = reply.leadership
    if leading is None:
        role = "no control plane: static endpoints only"
    else:
        role = "leads" if leading.here else f"follows {leading.leader or 'nobody'}"
        role += f", epoch {leading.epoch}" + ("" if leading.settled else ", settling")
    lines = [
        fields(
            [
                ("server", f"{reply.server} (llmgw {reply.version}), {role}"),
                ("cluster", reply.cluster_id),
                ("nodes", counts(reply.nodes.items())),
                ("devices", f"{reply.devices_used} of {reply.devices_total} in use"),
                ("models", counts(reply.models.items())),
                ("replicas", counts(reply.replicas.items())),
                ("endpoints", reply.endpoints),
                ("requests", f"{reply.in_flight} in flight, {reply.queued} waiting"),
                ("load", _load_text(reply.rates) if reply.rates else None),
            ]
        )
    ]
    if reply.problems:
        lines += ["", *(f"! {readable(problem)}" for problem in reply.problems[:_MOST_PROBLEMS])]
    if (more := len(reply.problems) - _MOST_PROBLEMS) > 0:
        lines.append(f"  and {more} more: llmgw ctl status --json")
    return "\n".join(lines)


def _load_text(rates: RatesReply) -> str:
    text = f"{rates.requests_per_s:.1f} requests/s, {rates.output_tokens_per_s:.1f} tokens/s"
    if rates.failed_per_s:
        text += f", {rates.failed_per_s:.1f} failed/s"
    if rates.first_token_p50_s is not None and rates.first_token_p99_s is not None:
        p50, p99 = (
            f"{value * 1000:.0f} ms" for value in (rates.first_token_p50_s, rates.first_token_p99_s)
        )
        text += f", first token after {p50} (p50), {p99} (p99)"
    return text


@click.command(cls=CtlCommand, examples=["llmgw ctl nodes"])
@pass_session
def nodes(session: Session) -> None:
    """All nodes."""
    from llmgw.adminapi.fleet import NodesReply

    raw = session.client.get("/nodes")
    session.show_reply(raw, NodesReply, lambda reply: nodes_table(reply.nodes))


def nodes_table(nodes: tuple[NodeReply, ...]) -> str:
    """Return one line a node."""
    import time

    from llmgw.ctl.render import age, table

    now = time.time()
    return table(
        ["NODE", "STATE", "POOL", "DEVICES", "FREE", "REPLICAS", "SEEN", "VERSION", "BECAUSE"],
        (
            [
                node.id,
                _node_state(node),
                node.pool,
                node.devices,
                node.devices_free,
                node.replicas,
                age(node.last_seen_at, now),
                node.version,
                node.because,
            ]
            for node in nodes
        ),
        width=terminal_width(),
    )


def _node_state(node: NodeReply) -> str:
    word = "draining" if node.draining else "cordoned" if node.cordoned else ""
    return f"{node.state},{word}" if word else node.state


@click.command(cls=CtlCommand, examples=["llmgw ctl node gpu-01"])
@click.argument("node_id", metavar="NODE")
@pass_session
def node(session: Session, node_id: str) -> None:
    """One node with its devices, engines, weights and replicas."""
    from llmgw.adminapi.fleet import NodeDetailReply
    from llmgw.ctl.client import escape

    raw = session.client.get(f"/nodes/{escape(node_id)}")
    session.show_reply(raw, NodeDetailReply, _node_text)


def _node_text(node: NodeDetailReply) -> str:
    import time

    from llmgw.ctl.render import age, fields, size, table

    mib = 1024 * 1024
    parts = [
        fields(
            [
                ("node", node.id),
                ("state", f"{_node_state(node)} for {age(node.since_at, time.time())}"),
                ("because", node.because),
                ("host", f"{node.hostname or '-'} at {node.address or '-'}"),
                ("pool", node.pool),
                ("labels", _labels(node.labels)),
                ("fabric", _labels(node.fabric)),
                ("cpu, ram", f"{node.cpu_count} cores, {size(node.ram_mib * mib)}"),
                ("ram free", _mib(node.ram_available_mib)),
                ("disk free", _mib(node.disk_free_mib)),
                ("engines", [f"{item.engine} {item.version}" for item in node.engines]),
                ("weights", [item.ref for item in node.weights]),
                ("agent", node.version),
            ]
        )
    ]
    if node.device_list:
        parts.append(
            table(
                [
                    "DEVICE",
                    "KIND",
                    "MEMORY",
                    "USED",
                    "BUSY",
                    "HEALTH",
                    "FABRIC",
                    "HELD BY",
                    "LABELS",
                ],
                (
                    [
                        device.index,
                        device.kind,
                        _mib(device.memory_mib),
                        _mib(device.memory_used_mib),
                        None if device.utilisation is None else f"{device.utilisation:.0%}",
                        device.health_reason or device.health,
                        device.island,
                        device.used_by
                        or (("another program",) if device.foreign_processes else ()),
                        _labels(device.labels),
                    ]
                    for device in node.device_list
                ),
            )
        )
    if node.replica_list:
        parts.append(replicas_table(node.replica_list))
    return "\n\n".join(parts)


def _labels(labels: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in labels.items()]


def _mib(value: int | None) -> str | None:
    from llmgw.ctl.render import size

    return None if value is None else size(value * 1024 * 1024)


@click.command(cls=CtlCommand, examples=["llmgw ctl models"])
@pass_session
def models(session: Session) -> None:
    """All models that clients may ask for."""
    from llmgw.adminapi.fleet import ModelsReply

    raw = session.client.get("/models")
    session.show_reply(raw, ModelsReply, lambda reply: models_table(reply.models))


def _wanted(model: ModelReply) -> str | None:
    if model.wanted_min == model.wanted_max:
        return None if model.wanted_max is None else str(model.wanted_max)
    return f"{model.wanted_min}-{model.wanted_max}"


def models_table(models: tuple[ModelReply, ...]) -> str:
    """Return one line a model."""
    from llmgw.ctl.render import table
    from llmgw.domain.wording import spelled

    return table(
        [
            "MODEL",
            "ALIASES",
            "STATE",
            "READY",
            "WANTED",
            "IN FLIGHT",
            "WAITING",
            "OWNER",
            "WHY NOT",
        ],
        (
            [
                model.name,
                model.aliases,
                model.state,
                model.ready,
                _wanted(model),
                model.in_flight,
                model.queued,
                model.owner,
                spelled(model.refusal.sentence) if model.refusal else None,
            ]
            for model in models
        ),
        width=terminal_width(),
    )


@click.command(
    cls=CtlCommand, examples=["llmgw ctl replicas", "llmgw ctl replicas --model smollm2"]
)
@click.option("--model", help="Of this model only.")
@pass_session
def replicas(session: Session, model: str | None) -> None:
    """All replicas, with the causes of failures below the table."""
    from llmgw.adminapi.fleet import ReplicasReply

    raw = session.client.get("/replicas")

    def text(reply: ReplicasReply) -> str:
        shown = tuple(item for item in reply.replicas if model in (None, item.model))
        return "\n\n".join(filter(None, [replicas_table(shown), failures_text(shown)]))

    session.show_reply(raw, ReplicasReply, text)


def replicas_table(replicas: tuple[ReplicaReply, ...]) -> str:
    """Return one line a replica."""
    import time

    from llmgw.ctl.render import age, table
    from llmgw.domain.wording import spelled

    now = time.time()
    return table(
        ["REPLICA", "MODEL", "PROFILE", "STATE", "AGE", "NODES", "DEVICES", "IN FLIGHT", "RESTARTS",
         "REASON"],
        (
            [
                replica.id,
                replica.model,
                replica.profile,
                replica.state,
                age(replica.since_at, now),
                replica.nodes,
                replica.devices,
                replica.in_flight,
                replica.restarts,
                spelled(replica.reason)
                or next((s.progress for s in replica.shards if s.progress), ""),
            ]
            for replica in replicas
        ),
        width=terminal_width(),
    )  # fmt: skip


def failures_text(replicas: tuple[ReplicaReply, ...]) -> str:
    """Return why engines failed, with the way out and their last lines."""
    from llmgw.ctl.render import plain, readable

    lines = []
    for replica in replicas:
        for shard in replica.shards:
            if shard.cause:
                lines.append(
                    f"{shard.id} on {shard.node}: {readable(shard.message)} [{shard.cause}]"
                )
                if shard.hint:
                    lines.append(f"  way out: {readable(shard.hint)}")
                lines += [f"  | {plain(line)}" for line in shard.log_tail[-_LAST_LINES:]]
                lines.append(f"  its log: llmgw ctl logs {shard.node} --source {shard.id}")
    return "\n".join(lines)


@click.command(cls=CtlCommand, examples=["llmgw ctl endpoints"])
@pass_session
def endpoints(session: Session) -> None:
    """Where this server's router sends requests."""
    from llmgw.adminapi.fleet import EndpointsReply

    raw = session.client.get("/endpoints")
    session.show_reply(raw, EndpointsReply, lambda reply: endpoints_table(reply.endpoints))


def endpoints_table(endpoints: tuple[EndpointReply, ...]) -> str:
    """Return one line an endpoint."""
    from llmgw.ctl.render import table

    return table(
        ["ENDPOINT", "MODELS", "STATE", "IN FLIGHT", "LIMIT", "PRIORITY", "WEIGHT", "NODE", "URL"],
        (
            [
                endpoint.id,
                endpoint.models,
                endpoint.state,
                endpoint.in_flight,
                endpoint.max_inflight,
                endpoint.priority,
                f"{endpoint.weight:g}",
                endpoint.node,
                endpoint.url,
            ]
            for endpoint in endpoints
        ),
    )


@click.command(
    cls=CtlCommand, examples=["llmgw ctl explain llama-3.1-8b", "llmgw ctl explain --node gpu-01"]
)
@click.argument("name", metavar="MODEL|NODE")
@click.option("--node", "is_node", is_flag=True, help="The name is a node's.")
@pass_session
def explain(session: Session, name: str, is_node: bool) -> None:
    """Why a model has not all its replicas, or why a node gets none."""
    from llmgw.adminapi.explain import ExplainReply
    from llmgw.ctl.client import escape

    kind = "node" if is_node else "model"
    raw = session.client.get(f"/explain/{kind}/{escape(name)}")

    def text(reply: ExplainReply) -> str:
        from llmgw.ctl.render import readable, refusal_tree

        head = f"{reply.subject}: {reply.summary}"
        return "\n".join([readable(head), *refusal_tree(reply.refusals)])

    session.show_reply(raw, ExplainReply, text)


@click.command(cls=CtlCommand, examples=["llmgw ctl route llama3"])
@click.argument("model")
@pass_session
def route(session: Session, model: str) -> None:
    """What the router would do with a request for MODEL now, and why."""
    from llmgw.adminapi.fleet import RouteReply
    from llmgw.ctl.client import escape

    raw = session.client.get(f"/route/{escape(model)}")

    def text(reply: RouteReply) -> str:
        from llmgw.ctl.render import readable

        head = f"{reply.model} is {reply.state}: "
        head += (
            f"to {reply.chosen} ({reply.because})" if reply.chosen else f"none ({reply.because})"
        )
        why = f"\n{readable(reply.refusal)}" if reply.refusal else ""
        return f"{readable(head)}{why}\n\n{endpoints_table(reply.endpoints)}"

    session.show_reply(raw, RouteReply, text)
