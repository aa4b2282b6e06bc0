"""One shard's life as a decision: what has happened, and what is to be done next.

    resolving ─▶ fetching ─▶ launching ─▶ warming ─▶ serving
        ▲                        │           │          │ failed, or a stop is ordered
        │                        ▼           ▼          ▼
     waiting ◀──── retry ──── clearing ◀──── ending (signal, grace; only for a stop)
                                 │
                                 └──▶ done (stopped) · halted (failed, not ours to restart)

    serving ─▶ dozing ─▶ sleeping ─▶ waking ─▶ warming    an engine's own sleep, and back

The phase *is* the action: the shell does what the phase names and returns with an event. No
clock, no I/O: `now` is an argument, and so is the seed of the jitter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from llmgw.domain.commands import ShardSpec
from llmgw.domain.loads import EngineLoad
from llmgw.domain.replicas import Failure, FailureCause, ShardState
from llmgw_agent.node.assignments import Intent

FIRST_BACKOFF_S = 5.0
BACKOFF_CAP_S = 300.0
HEALTHY_RESET_S = 600.0  #: ready for this long, and a crash loop is over
STUCK_S = 115.0  #: no answer, or requests without progress: with the look's own limit, 120 s
STUCK_COMPUTING_S = 600.0  #: instead, while it burns a core: a long prompt moves no counter
BAD_LOOKS = 3  #: in a row make a serving engine unhealthy
WARM_UP_TRIES = 3
_JITTER = 0.1


class Phase(StrEnum):
    """What the shell is doing for a shard."""

    WAITING = "waiting"  #: until `retry_at`
    RESOLVING = "resolving"  #: finds the engine on this node, or installs it
    FETCHING = "fetching"  #: weights
    LAUNCHING = "launching"
    WARMING = "warming"  #: looks until the engine has answered one request
    SERVING = "serving"  #: looks from time to time
    DOZING = "dozing"  #: tells the engine to sleep, waits until its device memory is back
    SLEEPING = "sleeping"  #: waits for an order, or for the engine's end
    WAKING = "waking"  #: tells the engine to wake
    ENDING = "ending"  #: stop signal, then the grace
    CLEARING = "clearing"  #: kills the tree, waits until device memory is back
    HALTED = "halted"  #: nothing runs; somebody else decides
    DONE = "done"  #: nothing runs and nothing is wanted


class After(StrEnum):
    """What follows when nothing of the engine is left."""

    RETRY = "retry"
    HALT = "halt"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the assignment says now."""

    intent: Intent = Intent.RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Where one shard is. Times are monotonic seconds of the agent."""

    spec: ShardSpec
    phase: Phase = Phase.RESOLVING
    after: After = After.RETRY  #: while clearing
    incarnation: int = 0
    restarts: int = 0
    failures: int = 0  #: in a row
    failure: Failure | None = None  #: the first of the present crash loop
    options: Mapping[str, object] = field(default_factory=dict)  #: added by a failure's advice
    retry_at: float = 0.0
    ready_at: float | None = None  #: of this incarnation
    bad_looks: int = 0  #: in a row
    good_at: float = 0.0  #: last good look of this incarnation
    moved_at: float = 0.0  #: last sign of progress, of the load or of the requests
    progress: float | None = None  #: token counter at `moved_at`
    warm_up_tries: int = 0
    unkillable: bool = False

    @property
    def is_unhealthy(self) -> bool:
        return self.bad_looks >= BAD_LOOKS or (self.ready_at is None and self.bad_looks > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a starting agent found of a shard; the defaults are those of one that never ran."""

    runs: bool = False  #: its engine is proven to run
    was_ready: bool = False
    asleep: bool = False  #: or on its way there or back
    ended: Failure | None = None
    incarnation: int = 0
    restarts: int = 0
    failures: int = 0
    failure: Failure | None = None
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The phase's work is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The phase's work cannot be done, or the engine ended although nobody asked for it."""

    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """The order may have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rediscovered:
    """The engine was started already, by a shim of the agent's former life."""

    found: Found


@dataclass(frozen=True, slots=True, kw_only=True)
class StillThere:
    """Ten seconds of killing, and a process of the tree is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """One look at a running engine."""

    healthy: bool
    why: str = ""  #: if not healthy
    wrong: str = ""  #: why whoever answers is not our engine with our model
    warm_up: str | None = None  #: "" passed, else why the one-token request failed; None: not tried
    grew: bool = False  #: its output grew since the last look
    load: EngineLoad | None = None
    computing: bool = False  #: its processes used at least half a core since the last look


Event = Passed | Failed | Ordered | Rediscovered | StillThere | Looked

_NEXT = {
    Phase.WAITING: Phase.RESOLVING,
    Phase.RESOLVING: Phase.FETCHING,
    Phase.FETCHING: Phase.LAUNCHING,
    Phase.LAUNCHING: Phase.WARMING,
    Phase.WARMING: Phase.SERVING,
    Phase.ENDING: Phase.CLEARING,
    Phase.DOZING: Phase.SLEEPING,
    Phase.WAKING: Phase.WARMING,
}
_BEFORE_LAUNCH = (Phase.WAITING, Phase.RESOLVING, Phase.FETCHING, Phase.HALTED)
_ENGINE_RUNS = (Phase.WARMING, Phase.SERVING, Phase.DOZING, Phase.SLEEPING, Phase.WAKING)


def advance(life: Life, order: Order, event: Event, now: float, *, seed: float = 0.0) -> Life:
    """Return the shard's life after `event`. seed: 0.0 to 1.0, shortens the backoff by up to 10 %."""
    match event:
        case Passed():
            life = _passed(life, order, now)
        case Failed(failure=failure):
            life = _failed(life, failure, now, seed)
        case Looked():
            life = _looked(life, event, now, seed)
        case Rediscovered(found=found):
            life = resume(life.spec, found, now, seed=seed)
        case StillThere():
            life = replace(life, unkillable=True)
        case Ordered():
            pass
        case _:
            assert_never(event)
    return _obey(life, order)


def resume(spec: ShardSpec, found: Found, now: float, *, seed: float = 0.0) -> Life:
    """Return the life of a shard that an agent finds when it starts.

    Whatever was not proven to run is cleared first: it costs one look at the process table, and
    nothing of a former life may be left when a new engine takes the same devices.
    """
    life = Life(
        spec=spec,
        phase=Phase.CLEARING,
        incarnation=found.incarnation,
        restarts=found.restarts,
        failures=found.failures,
        failure=found.failure,
        options=found.options,
        moved_at=now,
    )
    if found.ended is not None:
        return _failed(replace(life, phase=Phase.SERVING), found.ended, now, seed)
    if not found.runs:
        return life
    if found.asleep:
        # How far it got is not known: telling it once more to sleep ends where it should be.
        return replace(life, phase=Phase.DOZING)
    if not found.was_ready:
        return replace(life, phase=Phase.WARMING)
    # Ready until shown otherwise would publish an endpoint that this agent never saw.
    return replace(life, phase=Phase.SERVING, bad_looks=1, good_at=now)


def backoff_s(failures: int, seed: float) -> float:
    """Return the pause after this many failures in a row, at least 1."""
    pause = min(BACKOFF_CAP_S, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 16))
    return pause * (1.0 - _JITTER * seed)


def shard_state(life: Life, order: Order, *, installing: bool = False) -> ShardState:
    """Return what is reported for a shard in this phase. installing: its engine, at present."""
    match life.phase:
        case Phase.WAITING:
            return ShardState.BACKOFF if life.failures else ShardState.ASSIGNED
        case Phase.RESOLVING:
            return ShardState.INSTALLING if installing else ShardState.ASSIGNED
        case Phase.FETCHING:
            return ShardState.FETCHING
        case Phase.LAUNCHING | Phase.WARMING:
            return ShardState.STARTING
        case Phase.SERVING:
            if life.is_unhealthy:
                return ShardState.UNHEALTHY
            return ShardState.READY if order.intent is Intent.RUN else ShardState.DRAINING
        case Phase.DOZING:
            return ShardState.DRAINING
        case Phase.SLEEPING:
            return ShardState.SLEEPING
        case Phase.WAKING:
            return ShardState.STARTING
        case Phase.ENDING:
            return ShardState.STOPPING
        case Phase.CLEARING:
            if life.unkillable:
                return ShardState.UNKILLABLE
            if life.after is After.DONE:
                return ShardState.STOPPING
            return ShardState.UNHEALTHY if life.failures else ShardState.ASSIGNED
        case Phase.HALTED:
            return ShardState.FAILED
        case Phase.DONE:
            return ShardState.STOPPED
        case _:
            assert_never(life.phase)


def _passed(life: Life, order: Order, now: float) -> Life:
    if life.phase is Phase.CLEARING:
        return _cleared(life, order)
    is_launch = life.phase is Phase.LAUNCHING
    life = replace(life, phase=_NEXT[life.phase])
    if life.phase is Phase.WARMING:
        return replace(
            life,
            incarnation=life.incarnation + is_launch,
            ready_at=None,
            bad_looks=0,
            moved_at=now,
            progress=None,
            warm_up_tries=0,
        )
    return life


def _cleared(life: Life, order: Order) -> Life:
    life = replace(life, unkillable=False)
    match life.after:
        case After.HALT:
            return replace(life, phase=Phase.HALTED)
        case After.RETRY:
            return replace(life, phase=Phase.WAITING)
        case After.DONE if order.intent is Intent.RUN:
            # Ordered anew while it was being stopped: a fresh life, not a restart.
            return Life(spec=life.spec, incarnation=life.incarnation)
        case _:
            return replace(life, phase=Phase.DONE)


def _failed(life: Life, failure: Failure, now: float, seed: float) -> Life:
    if life.phase in (Phase.ENDING, Phase.CLEARING, Phase.DONE, Phase.HALTED):
        return life  # it is being ended anyway
    first = life.failure if life.failures and life.failure else failure
    phase = life.phase
    life = replace(life, phase=Phase.CLEARING, failures=life.failures + 1, failure=first)
    if life.spec.world_size > 1:
        # A gang is restarted as a whole, and by the reconciler, which knows the others.
        return replace(life, after=After.HALT)
    if phase is Phase.DOZING:
        # It was to give its memory back: ended, it does. Nobody asks for it to run.
        return replace(life, after=After.HALT)
    if phase is Phase.WAKING and life.failures == 1:
        # Somebody waits, and a cold start is the way that is left.
        return replace(life, after=After.RETRY, retry_at=now, restarts=life.restarts + 1)
    advice = failure.retry_options
    if advice and not life.options:
        return replace(
            life,
            after=After.RETRY,
            options=dict(advice),
            retry_at=now,
            restarts=life.restarts + 1,
        )
    return replace(
        life,
        after=After.RETRY,
        retry_at=now + backoff_s(life.failures, seed),
        restarts=life.restarts + 1,
    )


def _looked(life: Life, look: Looked, now: float, seed: float) -> Life:
    if look.wrong:
        failure = Failure(
            cause=FailureCause.WRONG_MODEL,
            message=look.wrong,
            hint="something else uses this port: give the agent another port range",
        )
        return _failed(life, failure, now, seed)
    match life.phase:
        case Phase.WARMING:
            return _looked_warming(life, look, now, seed)
        case Phase.SERVING:
            return _looked_serving(life, look, now, seed)
        case _:
            return life


def _looked_warming(life: Life, look: Looked, now: float, seed: float) -> Life:
    if look.healthy and look.warm_up == "":
        return replace(
            life, phase=Phase.SERVING, ready_at=now, moved_at=now, good_at=now, bad_looks=0
        )
    if look.warm_up:
        life = replace(life, warm_up_tries=life.warm_up_tries + 1, moved_at=now)
        if life.warm_up_tries >= WARM_UP_TRIES:
            failure = Failure(
                cause=FailureCause.ENGINE_INTERNAL,
                message=f"healthy by its own word, but a one-token request fails: {look.warm_up}",
            )
            return _failed(life, failure, now, seed)
        return life
    if look.grew:
        return replace(life, moved_at=now)
    if now - life.moved_at > life.spec.start_limit_s:
        failure = Failure(
            cause=FailureCause.START_TIMEOUT,
            message=f"no sign of progress for {life.spec.start_limit_s:g} s: {look.why}",
            hint="raise start_limit of the profile if such a long silence is normal for this model",
        )
        return _failed(life, failure, now, seed)
    return life


def _looked_serving(life: Life, look: Looked, now: float, seed: float) -> Life:
    if not look.healthy:
        life = replace(life, bad_looks=life.bad_looks + 1)
        return _stuck(life, now - life.good_at, STUCK_S, f"does not answer: {look.why}", now, seed)
    ready_at = now if life.ready_at is None else life.ready_at
    failures = 0 if now - ready_at >= HEALTHY_RESET_S else life.failures
    life = replace(life, bad_looks=0, good_at=now, ready_at=ready_at, failures=failures)
    progress = look.load.progress if look.load else None
    busy = bool(look.load and look.load.running)
    if not busy or progress is None or progress != life.progress:
        return replace(life, moved_at=now, progress=progress)
    limit_s = STUCK_COMPUTING_S if look.computing else STUCK_S
    return _stuck(life, now - life.moved_at, limit_s, "has requests but moves no token", now, seed)


def _stuck(life: Life, for_s: float, limit_s: float, how: str, now: float, seed: float) -> Life:
    if for_s < limit_s:
        return life
    failure = Failure(
        cause=FailureCause.NO_PROGRESS, message=f"the engine {how}, since {for_s:.0f} s"
    )
    return _failed(life, failure, now, seed)


def _obey(life: Life, order: Order) -> Life:
    if order.intent is Intent.STOP:
        if life.phase in _BEFORE_LAUNCH:
            return replace(life, phase=Phase.CLEARING, after=After.DONE)
        if life.phase in _ENGINE_RUNS:
            return replace(life, phase=Phase.ENDING, after=After.DONE)
        if life.phase is Phase.CLEARING:
            return replace(life, after=After.DONE)
    elif order.intent is Intent.RUN:
        if life.phase in (Phase.DOZING, Phase.SLEEPING):
            return replace(life, phase=Phase.WAKING)
    elif life.phase is Phase.WAITING:
        # Nobody may send it anything any more: starting it again would load weights for nothing.
        return replace(life, phase=Phase.HALTED)
    elif order.intent is Intent.SLEEP and life.phase is Phase.SERVING and not life.is_unhealthy:
        return replace(life, phase=Phase.DOZING)
    return life
