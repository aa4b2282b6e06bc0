"""Who comes first: among models that want room, replicas that may go, profiles to start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from llmgw.control.decide.eviction import rank_of
from llmgw.control.decide.roles import is_serving
from llmgw.control.decide.snapshot import ClusterSnapshot, ReplicaRecord
from llmgw.domain.catalog import Model, Profile
from llmgw.domain.ids import ModelName


def urgency(snapshot: ClusterSnapshot, model: Model) -> tuple[int, float, int, float, ModelName]:
    """Order models by importance; among equals whoever has waited longest gets room first.

    Among those for whom nobody waits, large ones come first: small ones fit into what they
    leave, but not the other way round.
    """
    wanted = snapshot.wanted.get(model.name)
    return (
        -rank_of(model),
        wanted.since if wanted else float("inf"),
        -max((item.devices.count for item in model.profiles), default=0),
        -max((item.devices.memory_gib or 0.0 for item in model.profiles), default=0.0),
        model.name,
    )


def worth(snapshot: ClusterSnapshot, record: ReplicaRecord) -> tuple[bool, bool, int, float, str]:
    """Order replicas by how little is lost with them.

    Not ready goes before ready. Among ready ones the one that became so last goes: after a
    lost node's return that is the original, whose replacement has been serving since.
    """
    node_open = all(
        node in snapshot.nodes and not snapshot.nodes[node].cordoned for node in record.nodes
    )
    return (
        is_serving(record),
        node_open,
        record.spec.priority,
        -record.replica.since,
        record.id,
    )


def count_by_profile(records: Sequence[ReplicaRecord]) -> defaultdict[str, int]:
    """Return how many replicas there are of each profile."""
    counts: defaultdict[str, int] = defaultdict(int)
    for record in records:
        counts[record.replica.profile] += 1
    return counts


def in_turn(model: Model, counts: Mapping[str, int]) -> list[Profile]:
    """Order profiles by priority; equals share the replicas by weight, each at least one.

    So a canary is a second profile of equal priority and small weight: it gets one replica,
    and its weight decides over its part of the traffic.
    """

    def turn(item: Profile) -> tuple[int, bool, float, str]:
        count = counts[item.name]
        return (-item.priority, count > 0, (count + 1) / item.weight, item.name)

    return sorted(model.profiles, key=turn)
