"""Spans of what the control plane does, for somebody outside who follows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from llmgw.control.decide.snapshot import ClusterSnapshot, Intent, Order, ReplicaRecord
from llmgw.domain.plans import Plan

Attribute = str | int | float | bool


class Spans(Protocol):
    """Takes each thing when it is over, with its length: nothing is kept while it goes on."""

    def note(self, name: str, *, took_s: float, attributes: Mapping[str, Attribute]) -> None:
        """Something has just ended. Must not wait, and must not raise."""
        ...


def note_plan(spans: Spans, snapshot: ClusterSnapshot, plan: Plan, *, took_s: float) -> None:
    """A pass is over that has ordered something."""
    attributes: dict[str, Attribute] = {
        "llmgw.plan.actions": len(plan.actions),
        "llmgw.plan.unplaced": len(plan.unplaced),
        "llmgw.nodes": len(snapshot.nodes),
        "llmgw.replicas": len(snapshot.replicas),
        "llmgw.epoch": snapshot.epoch,
    }
    spans.note("plan", took_s=took_s, attributes=attributes)


def note_ready(spans: Spans, record: ReplicaRecord, order: Order, *, took_s: float) -> None:
    """A replica is ready, so long after it was ordered to start, or to wake."""
    first = record.replica.first_ready
    woken = order.intent is Intent.RUN and first is not None and first < order.since
    name = "wake replica" if woken else "start replica"
    spans.note(name, took_s=took_s, attributes=_attributes(order))


def note_end(spans: Spans, order: Order, *, took_s: float) -> None:
    """The last shard of a replica is gone, so long after it was ordered to stop."""
    spans.note("stop replica", took_s=took_s, attributes=_attributes(order))


def _attributes(order: Order) -> dict[str, Attribute]:
    return {
        "llmgw.replica": order.replica,
        "llmgw.model": order.model,
        "llmgw.replica.nodes": ",".join(sorted({node for node, _ in order.shards})),
        "llmgw.because": order.because,
    }
