"""Why not, for a person: the whole tree of one model, or all models on one node."""

from __future__ import annotations

from dataclasses import replace

from llmgw.contracts.placement import PlacementPolicy
from llmgw.control.decide.codes import RefusalCode as Code
from llmgw.control.decide.eviction import propose_eviction
from llmgw.control.decide.examine import examine
from llmgw.control.decide.need import need_of
from llmgw.control.decide.parts import key_of, parts_of
from llmgw.control.decide.placement import Placement, Placer, unplaced
from llmgw.control.decide.snapshot import ClusterSnapshot
from llmgw.domain.catalog import Model
from llmgw.domain.ids import NodeId, ReplicaId
from llmgw.domain.plans import Refusal


def explain_refused(
    snapshot: ClusterSnapshot, model: Model, policy: PlacementPolicy
) -> Refusal | None:
    """Return why no further replica of the model could start now; None if one could.

    Asks the code that places, so that the answer and the deed agree. Where replicas have roles, one
    of each must be able to start: the answer is that of the first role that could not.
    """
    parts = (_explain(snapshot, part, policy) for part in parts_of(model))
    return next((refusal for refusal in parts if refusal is not None), None)


def _explain(snapshot: ClusterSnapshot, model: Model, policy: PlacementPolicy) -> Refusal | None:
    held = snapshot.setbacks.get(key_of(model))
    if held is not None and held.refusal.code == Code.ROLLOUT_FAILED:
        return held.refusal  # whatever the nodes say, nothing is tried before this is settled
    placer = Placer(snapshot, policy)
    parts: list[Refusal] = []
    for profile in sorted(model.profiles, key=lambda item: -item.priority):
        need = need_of(snapshot, model, profile)
        answer = placer.place(need, ReplicaId("explain"))
        if isinstance(answer, Placement):
            return None
        detailed = placer.explain(need)
        # A policy's veto is known only to `place`; what nodes say is spelt out in full.
        parts.append(answer if len(answer.parts) > len(detailed.parts) else detailed)
    refusal = unplaced(model, parts)
    eviction = propose_eviction(placer, model)
    return refusal if eviction is None else replace(refusal, hint=eviction.sentence)


def explain_on_node(
    snapshot: ClusterSnapshot, node: NodeId, policy: PlacementPolicy
) -> tuple[Refusal, ...]:
    """Return a refusal for each profile of each model that the node could not take now."""
    placer = Placer(snapshot, policy)
    account = placer.accounts.nodes.get(node)
    if account is None:
        return ()
    found: list[Refusal] = []
    for model in snapshot.models:
        for profile in sorted(model.profiles, key=lambda item: -item.priority):
            answer = examine(placer.accounts, account, need_of(snapshot, model, profile))
            if isinstance(answer, Refusal):
                found.append(answer)
    return tuple(found)
