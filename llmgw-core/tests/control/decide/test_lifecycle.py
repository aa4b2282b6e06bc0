"""What silence makes of nodes, and shards of replicas."""

from __future__ import annotations

import pytest

from llmgw.control.decide.lifecycle import (
    SilenceLimits,
    Vitals,
    derive_replica,
    judge_nodes,
    settled,
)
from llmgw.domain.ids import NodeId
from llmgw.domain.nodes import NodeState
from llmgw.domain.replicas import ReplicaState, Shard, ShardState
from llmgw.testing import values

LIMITS = SilenceLimits()


def vitals(
    name: str, silent_s: float, state: NodeState = NodeState.READY, *, live: bool = True
) -> Vitals:
    return Vitals(node=NodeId(name), state=state, last_seen=1000.0 - silent_s, session_live=live)


def fleet(*silent: Vitals, alive: int = 9) -> list[Vitals]:
    return [*silent, *(vitals(f"alive{index}", 1.0) for index in range(alive))]


@pytest.mark.parametrize(
    ("silent_s", "live", "expected"),
    [
        (0.0, True, NodeState.READY),
        (14.9, True, NodeState.READY),
        (1.0, False, NodeState.SUSPECT),
        (15.0, True, NodeState.SUSPECT),
        (45.0, False, NodeState.DISCONNECTED),
        (299.0, False, NodeState.DISCONNECTED),
        (300.0, False, NodeState.LOST),
    ],
)
def test_silence_means_more_the_longer_it_lasts(
    silent_s: float, live: bool, expected: NodeState
) -> None:
    judged = judge_nodes(
        fleet(vitals("n", silent_s, NodeState.DISCONNECTED, live=live)), now=1000.0, limits=LIMITS
    )
    assert judged.changed.get(NodeId("n"), NodeState.DISCONNECTED) is expected


def test_a_lost_node_comes_back_only_by_a_sign_of_life() -> None:
    silent = judge_nodes([vitals("n", 20.0, NodeState.LOST)], now=1000.0, limits=LIMITS)
    assert silent.changed == {}
    back = judge_nodes([vitals("n", 1.0, NodeState.LOST)], now=1000.0, limits=LIMITS)
    assert back.changed == {"n": NodeState.READY}


def test_a_fenced_node_is_not_judged() -> None:
    judged = judge_nodes([vitals("n", 900.0, NodeState.FENCED)], now=1000.0, limits=LIMITS)
    assert judged.changed == {}


def test_lost_can_be_switched_off() -> None:
    limits = SilenceLimits(lost_after=None)
    judged = judge_nodes(
        fleet(vitals("n", 9000.0, NodeState.DISCONNECTED)), now=1000.0, limits=limits
    )
    assert judged.changed == {}


def test_one_node_at_a_time_becomes_lost() -> None:
    due = [vitals(f"n{i}", 400.0 + 100 * i, NodeState.DISCONNECTED, live=False) for i in range(3)]
    first = judge_nodes(fleet(*due), now=1000.0, limits=LIMITS)
    assert first.changed == {"n2": NodeState.LOST}
    soon = judge_nodes(fleet(*due[:2]), now=1004.0, limits=LIMITS, last_lost_at=1000.0)
    assert soon.changed == {}
    assert soon.recheck_after_s == pytest.approx(6.0)


def test_half_a_fleet_that_fell_silent_together_is_not_lost() -> None:
    due = [vitals(f"n{i}", 400.0 + i, NodeState.DISCONNECTED, live=False) for i in range(6)]
    judged = judge_nodes(fleet(*due, alive=4), now=1000.0, limits=LIMITS)
    assert judged.changed == {}
    assert judged.braked
    much_later = judge_nodes(
        [*due, *(vitals(f"alive{i}", -9000.0) for i in range(4))], now=9000.0, limits=LIMITS
    )
    assert NodeState.LOST not in much_later.changed.values()


def test_nobody_becomes_lost_in_the_grace_of_a_new_leader() -> None:
    due = fleet(vitals("n", 400.0, NodeState.DISCONNECTED, live=False))
    judged = judge_nodes(due, now=1000.0, limits=LIMITS, grace_until=1050.0)
    assert judged.changed == {}
    assert not judged.braked


def shards(*states: ShardState) -> list[Shard]:
    return [
        values.report(f"n{rank}", values.shard(f"r.{rank}"), state).shard
        for rank, state in enumerate(states)
    ]


S, R = ShardState, ReplicaState


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([S.ASSIGNED], R.STARTING),
        ([S.FETCHING], R.STARTING),
        ([S.READY], R.READY),
        ([S.READY, S.READY], R.READY),
        ([S.READY, S.STARTING], R.STARTING),
        ([S.READY, S.UNHEALTHY], R.UNHEALTHY),
        ([S.BACKOFF], R.BACKOFF),
        ([S.READY, S.FAILED], R.FAILED),
        ([S.READY, S.DRAINING], R.DRAINING),
        ([S.STOPPING], R.STOPPING),
        ([S.READY, S.STOPPED], R.FAILED),
        ([S.STOPPED, S.STOPPED], R.STOPPED),
        ([S.SLEEPING], R.SLEEPING),
        ([S.READY, S.UNKILLABLE], R.UNKILLABLE),
    ],
)
def test_a_replica_is_as_well_as_its_worst_shard(
    states: list[ShardState], expected: ReplicaState
) -> None:
    nodes = [NodeId(f"n{rank}") for rank in range(len(states))]
    state, _ = derive_replica(
        shards(*states),
        shard_count=len(states),
        node_states=dict.fromkeys(nodes, NodeState.READY),
        nodes=nodes,
    )
    assert state is expected


@pytest.mark.parametrize(
    ("node_state", "expected"),
    [
        (NodeState.SUSPECT, R.UNREACHABLE),
        (NodeState.DISCONNECTED, R.UNREACHABLE),
        (NodeState.LOST, R.LOST),
        (NodeState.FENCED, R.LOST),
    ],
)
def test_a_silent_node_says_nothing_of_its_engines(
    node_state: NodeState, expected: ReplicaState
) -> None:
    state, reason = derive_replica(
        shards(S.READY),
        shard_count=1,
        node_states={NodeId("n0"): node_state},
        nodes=[NodeId("n0")],
    )
    assert state is expected
    assert "n0" in reason


@pytest.mark.parametrize(
    ("now", "known", "registered", "first", "expected"),
    [
        (1.0, ["a"], [], None, False),
        (1.0, ["a"], ["a", "b"], 0.5, True),
        (29.0, ["a", "b"], ["a"], 0.5, False),
        (30.0, ["a", "b"], ["a"], 0.5, True),
        (1.0, [], ["a"], 0.5, False),
        (3.5, [], ["a"], 0.5, True),
        (29.0, [], [], None, False),
        (30.0, [], [], None, True),
    ],
)
def test_a_fleet_has_settled_when_all_known_nodes_are_back_or_the_window_is_over(
    now: float,
    known: list[NodeId],
    registered: list[NodeId],
    first: float | None,
    expected: bool,
) -> None:
    done, left_s = settled(
        now=now,
        began=0.0,
        settle_s=30.0,
        known=set(known),
        registered=set(registered),
        first_registration=first,
    )
    assert done is expected
    assert (left_s is None) is expected
