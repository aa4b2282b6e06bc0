"""Who could make room: the cheapest set of sleeping or idle replicas whose end lets a model run.

A pure proposal: it is tried in the accounts and taken back; whoever asked decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw.control.decide.need import Need, need_of
from llmgw.control.decide.placement import Placer
from llmgw.control.decide.roles import idle_s, is_busy, is_serving, resident_s
from llmgw.control.decide.snapshot import ClusterSnapshot, ReplicaRecord
from llmgw.control.decide.targets import is_wanted
from llmgw.domain.catalog import Model
from llmgw.domain.replicas import ReplicaState
from llmgw.domain.units import format_duration

#: Victims that are tried, the cheapest first; more would cost seconds on a large fleet.
TRIED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Replicas to stop, the cheapest first, and what it costs in words."""

    victims: tuple[ReplicaRecord, ...]
    sentence: str


def propose_eviction(
    placer: Placer, model: Model, *, spared: frozenset[str] = frozenset()
) -> Eviction | None:
    """Return the cheapest way to make room for one replica of the model; None if there is none.

    spared: replicas that are going already.
    """
    snapshot = placer.snapshot
    candidates = sorted(
        (
            record
            for record in snapshot.replicas
            if record.id not in spared and may_evict(snapshot, record, model)
        ),
        key=lambda record: _cost(snapshot, record),
    )[:TRIED]
    for profile in sorted(model.profiles, key=lambda item: -item.priority):
        need = need_of(snapshot, model, profile)
        if victims := _fewest(placer, need, candidates):
            names = ", ".join(
                f"{record.replica.model} (idle {format_duration(idle_s(snapshot, record))})"
                for record in victims
            )
            return Eviction(
                victims=victims, sentence=f"to place {model.name}: put {names} to sleep"
            )
    return None


def may_evict(snapshot: ClusterSnapshot, record: ReplicaRecord, model: Model) -> bool:
    """Return whether the replica may be stopped so that `model` can run.

    Only models that may sleep, never more important ones, none that has hardly been there
    (two models that take turns would make each other fail for ever). A busy one, or one of
    equal rank that others wait for, goes only once somebody has waited unfairly long: a steady
    stream of requests must not starve the rest.
    """
    owner = snapshot.model(record.replica.model)
    if owner is None or owner.name == model.name or not owner.may_sleep:
        return False
    if record.leaving or not is_serving(record):
        return False
    if record.replica.state is ReplicaState.UNREACHABLE:
        return False  # its node could not be told
    if resident_s(snapshot, record) < snapshot.limits.minimum_residence:
        return False
    rank, own_rank = rank_of(model), rank_of(owner)
    if own_rank > rank or (own_rank == rank and not is_wanted(snapshot, model)):
        return False
    if is_busy(snapshot, record) or (own_rank == rank and is_wanted(snapshot, owner)):
        return waited_s(snapshot, model) >= snapshot.limits.fair_wait
    return True


def rank_of(model: Model) -> int:
    """Return how important a model is: the priority of its best profile."""
    return max((profile.priority for profile in model.profiles), default=0)


def waited_s(snapshot: ClusterSnapshot, model: Model) -> float:
    """Return for how long somebody has been waiting for the model; 0 if nobody is."""
    wanted = snapshot.wanted.get(model.name)
    return snapshot.now - wanted.since if wanted is not None else 0.0


def _cost(snapshot: ClusterSnapshot, record: ReplicaRecord) -> tuple[int, bool, float, str]:
    owner = snapshot.model(record.replica.model)
    rank = rank_of(owner) if owner is not None else 0
    return (rank, is_busy(snapshot, record), -idle_s(snapshot, record), record.id)


def _fewest(
    placer: Placer, need: Need, candidates: Sequence[ReplicaRecord]
) -> tuple[ReplicaRecord, ...]:
    """Release candidates until the need fits, then keep those that it does not take."""
    released: list[ReplicaRecord] = []
    fits = False
    for record in candidates:
        if not _could_help(placer, need, record):
            continue
        _release(placer, record)
        released.append(record)
        if placer.can_place(need):
            fits = True
            break
    victims = list(released)
    if fits:
        for record in reversed(released[:-1]):  # the dearest ones first; the last one is needed
            _rebook(placer, record)
            if placer.can_place(need):
                victims.remove(record)
            else:
                _release(placer, record)
    for record in victims:
        _rebook(placer, record)
    return tuple(victims) if fits else ()


def _could_help(placer: Placer, need: Need, record: ReplicaRecord) -> bool:
    """Return whether a node of the replica could take a shard at all."""
    eligible = placer.index.eligible(need)
    return any(
        (account := placer.accounts.nodes.get(node)) is not None and eligible >> account.index & 1
        for node in record.nodes
    )


def _release(placer: Placer, record: ReplicaRecord) -> None:
    for node, spec in record.shards:
        placer.release(node, spec)


def _rebook(placer: Placer, record: ReplicaRecord) -> None:
    for node, spec in record.shards:
        placer.restore(node, spec)
