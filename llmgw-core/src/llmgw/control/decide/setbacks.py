"""What did not work, how long it is left alone, and what it holds up meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from llmgw.control.decide.backoff import backoff_s
from llmgw.control.decide.codes import RefusalCode as Code
from llmgw.control.decide.parts import key_of, named
from llmgw.control.decide.roles import Roles, is_serving
from llmgw.control.decide.snapshot import Avoidance, ClusterSnapshot, Setback
from llmgw.control.decide.targets import is_wanted
from llmgw.domain.catalog import Model
from llmgw.domain.ids import NodeId
from llmgw.domain.plans import Refusal
from llmgw.domain.replicas import Failure


def failed_rollout(
    snapshot: ClusterSnapshot,
    model: Model,
    roles: Roles,
    avoided: Mapping[tuple[str, NodeId], Avoidance],
) -> Refusal | None:
    """Return why a rollout stands still: its new version failed while the old one serves."""
    if not any(is_serving(item) for item in roles.old) or any(map(is_serving, roles.fresh)):
        return None
    hashes = [snapshot.hashes[model.name][item.name] for item in model.profiles]
    if all(snapshot.profile_of(model, item) is not None for item in roles.old):
        return None
    for (hashed, node), avoidance in sorted(avoided.items()):
        if hashed in hashes and avoidance.failure is not None:
            return Refusal(
                code=Code.ROLLOUT_FAILED,
                sentence=f"the new version of {named(model)} failed on {node}, the old one "
                f"goes on serving: {avoidance.failure.message}",
                model=model.name,
                node=node,
                hint=avoidance.failure.hint
                or f"change the entry or roll it back; where its cause is gone, run "
                f"`llmgw ctl retry {model.name}`",
            )
    return None


def held_back(snapshot: ClusterSnapshot, model: Model) -> Setback | None:
    """Return the last refusal while nothing has changed that could overturn it."""
    setback = snapshot.setbacks.get(key_of(model))
    if setback is None:
        return None
    fresh = setback.revision == snapshot.revision and setback.until > snapshot.now
    return setback if fresh else None


def setback_after(snapshot: ClusterSnapshot, model: Model, refusal: Refusal) -> Setback:
    """Return until when a model that has no place is not looked at again."""
    before = snapshot.setbacks.get(key_of(model))
    count = before.count + 1 if before else 1
    limits = snapshot.limits
    pause_s = backoff_s(count, base_s=limits.base_backoff, cap_s=limits.max_backoff)
    ends = [
        item.until - snapshot.now for item in snapshot.avoided.values() if item.until > snapshot.now
    ]
    pause_s = min([pause_s, *ends])
    if is_wanted(snapshot, model):
        # Who may be put to sleep for it changes with time alone.
        pause_s = min(pause_s, limits.base_backoff)
    return Setback(
        until=snapshot.now + pause_s, count=count, revision=snapshot.revision, refusal=refusal
    )


def avoidance_after(
    snapshot: ClusterSnapshot, hashed: str, node: NodeId, failure: Failure | None
) -> Avoidance:
    """Return until when a version that failed on a node is kept off it."""
    before = snapshot.avoided.get((hashed, node))
    count = before.count + 1 if before else 1
    limits = snapshot.limits
    pause_s = backoff_s(count, base_s=limits.base_backoff, cap_s=limits.max_backoff)
    return Avoidance(until=snapshot.now + pause_s, count=count, failure=failure)
