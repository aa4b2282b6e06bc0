"""LoRA adapters of the models: what the engines are to have, what is served, and what is missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from llmgw.control.decide.codes import RefusalCode as Code
from llmgw.control.decide.snapshot import ClusterSnapshot, Engine, ReplicaRecord
from llmgw.domain.catalog import Model, Profile
from llmgw.domain.commands import LoraAdapter
from llmgw.domain.endpoints import ModelState, ModelStatus
from llmgw.domain.ids import ModelName
from llmgw.domain.plans import AdaptReplica, Refusal
from llmgw.domain.reports import ShardReport

#: What an agent announces that loads adapters into a running engine.
_CAPABILITY = "adapters"


def wanted_adapters(profile: Profile) -> tuple[LoraAdapter, ...]:
    """Return what the engines of the profile are to have, in its order."""
    return tuple(LoraAdapter(name=item.name, weights=item.weights) for item in profile.adapters)


def adapt(snapshot: ClusterSnapshot, model: Model, record: ReplicaRecord) -> AdaptReplica | None:
    """Return the order that gives the replica the profile's adapters; a gang has none."""
    node, spec = record.shards[0]
    profile, report = model.profile(spec.profile), record.reports.get(spec.id)
    if profile is None or report is None or not (profile.adapters or report.spec.adapters):
        return None
    known = snapshot.nodes.get(node)
    if known is None or (inventory := known.inventory) is None:
        return None
    wanted = wanted_adapters(profile)
    if report.spec.adapters == wanted or _CAPABILITY not in inventory.capabilities:
        return None
    names = ", ".join(item.name for item in wanted) or "none"
    because = f"the profile's adapters are {names}"
    return AdaptReplica(replica=record.id, adapters=wanted, because=because)


def served_adapters(
    engine: Engine | None, profile: Profile | None, report: ShardReport
) -> Mapping[ModelName, str]:
    """Return what routers may know, by name: what is loaded, and not about to be unloaded."""
    if engine is None or profile is None or not profile.adapters:
        return {}
    wanted = {item.name for item in profile.adapters}
    return {
        item.name: engine.adapter_model(report.spec, item.name)
        for item in report.adapters
        if item.name in wanted and not item.problem
    }


def adapter_statuses(
    snapshot: ClusterSnapshot, model: Model, loaded: Collection[ModelName], base: ModelStatus
) -> list[ModelStatus]:
    """Return one status per adapter: served where it is loaded, coming while its model serves."""
    if not any(profile.adapters for profile in model.profiles):
        return []
    found = []
    for name in model.adapters:
        state, refusal = base.state, base.refusal
        if state is ModelState.SERVING and name not in loaded:
            refusal = _refusal(snapshot, model, name)
            state = ModelState.WAKING if refusal is None else ModelState.UNPLACEABLE
        found.append(replace(base, names=(name,), state=state, refusal=refusal))
    return found


def _refusal(snapshot: ClusterSnapshot, model: Model, name: ModelName) -> Refusal | None:
    """Return why no replica has it; None while it may still come."""
    for record in snapshot.replicas_of(model.name):
        for report in record.reports.values():
            for item in report.adapters:
                if item.name == name and item.problem:
                    return Refusal(
                        code=Code.ADAPTER_FAILED,
                        sentence=f"the adapter {name} of {model.name} cannot be loaded: "
                        f"{item.problem}",
                        model=model.name,
                        node=report.shard.node,
                        hint="it is tried again; look at its weights, or take it out of the "
                        "profile",
                    )
        known = snapshot.nodes.get(record.nodes[0])
        if known and known.inventory and _CAPABILITY not in known.inventory.capabilities:
            return Refusal(
                code=Code.AGENT_TOO_OLD,
                sentence=f"the agent of {known.id} is {known.inventory.agent_version}, which loads "
                f"no adapters: {name} of {model.name} is not there",
                model=model.name,
                node=known.id,
                hint=f"upgrade the agent of {known.id}",
            )
    return None
