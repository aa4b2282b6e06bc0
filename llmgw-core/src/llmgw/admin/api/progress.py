"""What is under way: shards that start, weights and engines that nodes fetch, rollouts."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.admin.api.fleet import find_model, view_of
from llmgw.admin.jobs import Job
from llmgw.admin.operations import Call, Changed, Operation
from llmgw.admin.translate import count_by_state, progress_text
from llmgw.adminapi.work import (
    JobReply,
    ProgressReply,
    RetryReply,
    RolloutReply,
    RolloutsReply,
    StepReply,
)
from llmgw.control.decide.parts import setback_of
from llmgw.control.decide.snapshot import ClusterSnapshot
from llmgw.control.view import ModelView
from llmgw.domain.ids import ModelName
from llmgw.domain.plans import Refusal
from llmgw.domain.replicas import Replica, Shard, ShardState
from llmgw.store.tokens import Role

_ON_ITS_WAY = frozenset(
    {
        ShardState.ASSIGNED,
        ShardState.INSTALLING,
        ShardState.FETCHING,
        ShardState.STARTING,
        ShardState.BACKOFF,
        ShardState.FAILED,
    }
)


async def progress(call: Call) -> ProgressReply:
    clock = call.parts.clock
    began = clock.wall() - clock.monotonic()
    replicas = () if call.parts.view is None else call.parts.view.replicas()
    return ProgressReply(
        steps=tuple(
            _step(record.replica, shard, began)
            for record in replicas
            for shard in record.replica.shards
            if shard.state in _ON_ITS_WAY
        ),
        jobs=tuple(_job(job) for job in call.parts.jobs.list()),
    )


async def rollouts(call: Call) -> RolloutsReply:
    models = view_of(call).models()
    snapshot = view_of(call).snapshot()
    entries = {model.name: model for model in snapshot.models}
    old: dict[ModelName, list[Replica]] = {}
    new: dict[ModelName, list[Replica]] = {}
    for record in snapshot.replicas:
        replica, model = record.replica, entries.get(record.replica.model)
        if model is not None:
            is_old = snapshot.profile_of(model, record) is None
            (old if is_old else new).setdefault(model.name, []).append(replica)
    return RolloutsReply(
        rollouts=tuple(
            _rollout(
                item, new.get(item.model.name, ()), old[item.model.name], _why_not(item, snapshot)
            )
            for item in models
            if item.model.name in old
        )
    )


async def retry(call: Call) -> Changed:
    model = find_model(call).model.name
    nodes = tuple(sorted(call.parts.retry(model)))
    return Changed(
        reply=RetryReply(model=model, nodes=nodes),
        kind="model_retried",
        subject=f"model {model}",
        message=f"tried again where it had failed: {', '.join(nodes)}",
        happened=bool(nodes),
    )


def _rollout(
    view: ModelView, new: Iterable[Replica], old: Iterable[Replica], refusal: Refusal | None
) -> RolloutReply:
    return RolloutReply(
        model=view.model.name,
        new=count_by_state(replica.state.value for replica in new),
        old=count_by_state(replica.state.value for replica in old),
        problem=refusal.sentence if refusal else "",
        hint=refusal.hint if refusal else "",
    )


def _step(replica: Replica, shard: Shard, began: float) -> StepReply:
    step = shard.progress
    return StepReply(
        shard=shard.id,
        node=shard.node,
        model=replica.model,
        state=shard.state.value,
        progress=progress_text(step),
        progress_done=step.done if step else None,
        progress_total=step.total if step else None,
        problem=shard.failure.message if shard.failure else "",
        hint=shard.failure.hint if shard.failure else "",
        since_at=began + replica.since,
    )


def _job(job: Job) -> JobReply:
    return JobReply(
        node=job.node,
        kind=job.kind,
        subject=job.subject,
        who=job.who,
        state=job.state,
        problem=job.problem,
        progress=progress_text(job.progress),
        progress_done=job.progress.done if job.progress else None,
        progress_total=job.progress.total if job.progress else None,
        began_at=job.began_at,
        ended_at=job.ended_at,
    )


def _why_not(view: ModelView, snapshot: ClusterSnapshot) -> Refusal | None:
    """Return why there are not more replicas, also where the old version goes on serving."""
    held = setback_of(snapshot, view.model)
    return view.status.refusal if held is None else held.refusal


OPERATIONS = (
    Operation(
        method="GET",
        path="/progress",
        role=Role.VIEWER,
        summary="Shards on their way, and what nodes were told to fetch.",
        handler=progress,
        reply=ProgressReply,
    ),
    Operation(
        method="GET",
        path="/rollouts",
        role=Role.VIEWER,
        summary="Models whose replicas are not all of their newest version.",
        handler=rollouts,
        reply=RolloutsReply,
    ),
    Operation(
        method="POST",
        path="/models/{name:path}/retry",
        role=Role.OPERATOR,
        summary="Try again at once what of a model has failed: a rollout, or a start.",
        handler=retry,
        reply=RetryReply,
        changes=True,
        errors=(404,),
    ),
)
