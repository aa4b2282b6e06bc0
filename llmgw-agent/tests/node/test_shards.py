"""A shard's life as a table: what happened, what is done next."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from llmgw.domain.commands import Peer
from llmgw.domain.ids import NodeId
from llmgw.domain.loads import EngineLoad
from llmgw.domain.replicas import Failure, FailureCause, ShardState
from llmgw.testing import values
from llmgw_agent.node.assignments import Intent
from llmgw_agent.node.shards import (
    HEALTHY_RESET_S,
    STUCK_COMPUTING_S,
    STUCK_S,
    After,
    Event,
    Failed,
    Found,
    Life,
    Looked,
    Order,
    Ordered,
    Passed,
    Phase,
    StillThere,
    advance,
    backoff_s,
    resume,
    shard_state,
)

SPEC = values.shard("r1.0", start_limit_s=100)
PEER = Peer(rank=0, node=NodeId("n1"), address="10.0.0.1", ports=(1,), devices=1)
GANG = replace(SPEC, peers=(PEER, replace(PEER, rank=1)))
RUN, DRAIN, STOP = (Order(intent=intent) for intent in (Intent.RUN, Intent.DRAIN, Intent.STOP))
DIED = Failed(failure=Failure(cause=FailureCause.KILLED, message="killed"))
GOOD = Looked(healthy=True)
WARM = Looked(healthy=True, warm_up="")
BAD = Looked(healthy=False, why="refused")


def life(phase: Phase, **fields: object) -> Life:
    return replace(Life(spec=SPEC, phase=phase), **fields)  # type: ignore[arg-type]


def serving(**fields: object) -> Life:
    return life(Phase.SERVING, **{"incarnation": 1, "ready_at": 0.0, **fields})


def test_a_start_goes_through_every_phase_in_order() -> None:
    now, seen = 10.0, [Phase.RESOLVING]
    shard = Life(spec=SPEC)
    while shard.phase is not Phase.SERVING:
        event: Event = WARM if shard.phase is Phase.WARMING else Passed()
        shard = advance(shard, RUN, event, now)
        seen.append(shard.phase)
    assert seen == [
        Phase.RESOLVING,
        Phase.FETCHING,
        Phase.LAUNCHING,
        Phase.WARMING,
        Phase.SERVING,
    ]
    assert (shard.incarnation, shard.ready_at) == (1, now)


@pytest.mark.parametrize(
    ("phase", "then"),
    [
        (Phase.WAITING, Phase.CLEARING),
        (Phase.RESOLVING, Phase.CLEARING),
        (Phase.FETCHING, Phase.CLEARING),
        (Phase.HALTED, Phase.CLEARING),
        (Phase.WARMING, Phase.ENDING),
        (Phase.SERVING, Phase.ENDING),
        (Phase.ENDING, Phase.ENDING),
        (Phase.CLEARING, Phase.CLEARING),
        (Phase.LAUNCHING, Phase.LAUNCHING),  # which passes, and is stopped then
    ],
)
def test_a_stop_is_obeyed_in_every_phase(phase: Phase, then: Phase) -> None:
    after = advance(life(phase), STOP, Ordered(), 0.0)
    assert after.phase is then
    while after.phase is not Phase.DONE:
        after = advance(after, STOP, Passed(), 0.0)


def test_an_engine_that_fails_is_cleared_before_it_is_started_again() -> None:
    failed = advance(serving(), RUN, DIED, 100.0)
    assert (failed.phase, failed.after) == (Phase.CLEARING, After.RETRY)
    waiting = advance(failed, RUN, Passed(), 101.0)
    assert (waiting.phase, waiting.retry_at) == (Phase.WAITING, 105.0)
    assert advance(waiting, RUN, Passed(), 105.0).phase is Phase.RESOLVING


@pytest.mark.parametrize(
    ("failures", "pause"), [(1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (50, 300), (9999, 300)]
)
def test_pauses_double_up_to_a_cap(failures: int, pause: float) -> None:
    assert backoff_s(failures, 0.0) == pause
    assert pause * 0.9 <= backoff_s(failures, 1.0) < pause


def test_the_first_failure_of_a_crash_loop_is_the_one_that_is_kept() -> None:
    first = Failure(cause=FailureCause.OUT_OF_MEMORY, message="the real reason")
    shard = advance(serving(), RUN, Failed(failure=first), 0.0)
    shard = advance(replace(shard, phase=Phase.WARMING), RUN, DIED, 10.0)
    assert (shard.failures, shard.restarts, shard.failure) == (2, 2, first)


def test_a_long_healthy_run_ends_the_crash_loop() -> None:
    shard = serving(failures=3, ready_at=0.0)
    assert advance(shard, RUN, GOOD, HEALTHY_RESET_S - 1).failures == 3
    assert advance(shard, RUN, GOOD, HEALTHY_RESET_S).failures == 0


def test_the_advice_of_a_failure_is_tried_once_and_at_once() -> None:
    sigill = Failure(
        cause=FailureCause.ILLEGAL_INSTRUCTION, message="SIGILL", retry_options={"repack": False}
    )
    shard = advance(life(Phase.WARMING), RUN, Failed(failure=sigill), 50.0)
    assert (shard.options, shard.retry_at) == ({"repack": False}, 50.0)
    again = advance(replace(shard, phase=Phase.WARMING), RUN, Failed(failure=sigill), 60.0)
    assert (again.options, again.retry_at) == ({"repack": False}, 70.0)


def test_a_member_of_a_gang_is_not_restarted_here() -> None:
    shard = advance(replace(serving(), spec=GANG), RUN, DIED, 0.0)
    shard = advance(shard, RUN, Passed(), 0.0)
    assert shard.phase is Phase.HALTED
    assert shard_state(shard, RUN) is ShardState.FAILED


def test_an_engine_that_dies_while_it_drains_is_not_started_again() -> None:
    shard = advance(advance(serving(), DRAIN, DIED, 0.0), DRAIN, Passed(), 0.0)
    assert shard.phase is Phase.HALTED


def test_a_load_is_not_given_up_while_it_says_something() -> None:
    shard = life(Phase.WARMING, moved_at=0.0)
    shard = advance(shard, RUN, replace(BAD, grew=True), 90.0)
    shard = advance(shard, RUN, BAD, 189.0)
    assert shard.phase is Phase.WARMING
    shard = advance(shard, RUN, BAD, 191.0)
    assert shard.failure is not None
    assert shard.failure.cause is FailureCause.START_TIMEOUT


def test_ready_needs_a_one_token_request_and_three_refusals_are_a_failure() -> None:
    shard = life(Phase.WARMING)
    for _ in range(2):
        shard = advance(shard, RUN, Looked(healthy=True, warm_up="says 500"), 1.0)
        assert shard.phase is Phase.WARMING
    shard = advance(shard, RUN, Looked(healthy=True, warm_up="says 500"), 1.0)
    assert shard.failure is not None
    assert shard.failure.cause is FailureCause.ENGINE_INTERNAL
    assert "says 500" in shard.failure.message


@pytest.mark.parametrize("phase", [Phase.WARMING, Phase.SERVING])
def test_another_answer_on_the_port_is_never_ready(phase: Phase) -> None:
    shard = advance(life(phase), RUN, Looked(healthy=False, wrong="serves other"), 1.0)
    assert shard.failure is not None
    assert shard.failure.cause is FailureCause.WRONG_MODEL
    assert shard.phase is Phase.CLEARING


def test_three_bad_looks_make_it_unhealthy_and_one_good_look_ready_again() -> None:
    shard = serving()
    states = []
    for event in (BAD, BAD, BAD, GOOD):
        shard = advance(shard, RUN, event, 10.0)
        states.append(shard_state(shard, RUN))
    assert states == [
        ShardState.READY,
        ShardState.READY,
        ShardState.UNHEALTHY,
        ShardState.READY,
    ]


def test_no_answer_for_long_is_a_restart() -> None:
    shard = serving(good_at=1000.0)
    assert advance(shard, RUN, BAD, 1000 + STUCK_S - 1).phase is Phase.SERVING
    shard = advance(shard, RUN, BAD, 1000 + STUCK_S)
    assert shard.failure is not None
    assert shard.failure.cause is FailureCause.NO_PROGRESS


def busy(tokens: float, *, computing: bool = False) -> Looked:
    load = EngineLoad(running=2, waiting=0, generated_tokens=tokens)
    return Looked(healthy=True, load=load, computing=computing)


@pytest.mark.parametrize(
    ("last", "for_s", "restarted"),
    [
        (busy(7), STUCK_S, True),
        (busy(7), STUCK_S - 1, False),
        (busy(8), STUCK_S, False),  # it moves, however slowly
        (busy(7, computing=True), STUCK_S, False),  # a long prompt
        (busy(7, computing=True), STUCK_COMPUTING_S, True),
        (GOOD, STUCK_S, False),  # nothing is known of its load
        (
            Looked(healthy=True, load=EngineLoad(running=0, waiting=0, generated_tokens=7)),
            999,
            False,
        ),
        (Looked(healthy=True, load=EngineLoad(running=2, waiting=0)), 999, False),
    ],
)
def test_requests_without_progress_are_a_restart(
    last: Looked, for_s: float, restarted: bool
) -> None:
    shard = advance(serving(), RUN, busy(7), 1000.0)
    shard = advance(shard, RUN, last, 1000.0 + for_s)
    assert (shard.phase is Phase.CLEARING) == restarted


def test_a_tree_that_cannot_be_killed_is_said_so_and_tried_again() -> None:
    shard = advance(life(Phase.CLEARING, failures=1), RUN, StillThere(), 0.0)
    assert shard_state(shard, RUN) is ShardState.UNKILLABLE
    assert shard.phase is Phase.CLEARING
    shard = advance(shard, RUN, Passed(), 0.0)
    assert shard_state(shard, RUN) is ShardState.BACKOFF


def test_a_start_ordered_during_a_stop_is_a_fresh_life_once_the_old_one_is_gone() -> None:
    shard = advance(serving(restarts=4), STOP, Ordered(), 0.0)
    shard = advance(shard, RUN, Passed(), 0.0)
    assert shard.phase is Phase.CLEARING
    shard = advance(shard, RUN, Passed(), 0.0)
    assert (shard.phase, shard.restarts, shard.incarnation) == (Phase.RESOLVING, 0, 1)


@pytest.mark.parametrize(
    ("found", "phase", "state"),
    [
        (Found(), Phase.CLEARING, ShardState.ASSIGNED),
        (Found(runs=True, was_ready=True, incarnation=3), Phase.SERVING, ShardState.UNHEALTHY),
        (Found(runs=True, incarnation=3), Phase.WARMING, ShardState.STARTING),
        (Found(ended=DIED.failure, incarnation=3), Phase.CLEARING, ShardState.UNHEALTHY),
    ],
)
def test_what_was_found_decides_how_a_life_goes_on(
    found: Found, phase: Phase, state: ShardState
) -> None:
    shard = resume(SPEC, found, 50.0)
    assert (shard.phase, shard_state(shard, RUN)) == (phase, state)
    assert shard.incarnation == found.incarnation


def test_an_adopted_engine_is_ready_only_when_this_agent_saw_it_so() -> None:
    shard = resume(SPEC, Found(runs=True, was_ready=True, incarnation=3), 50.0)
    shard = advance(shard, RUN, GOOD, 51.0)
    assert (shard_state(shard, RUN), shard.ready_at) == (ShardState.READY, 51.0)


@pytest.mark.parametrize("phase", list(Phase))
def test_every_event_in_every_phase_has_an_answer(phase: Phase) -> None:
    answered: Callable[[Event], Life] = lambda event: advance(life(phase), RUN, event, 1.0)  # noqa: E731
    for event in (DIED, Ordered(), GOOD, BAD, StillThere()):
        assert shard_state(answered(event), RUN)
