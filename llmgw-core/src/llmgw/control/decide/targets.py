"""How many replicas a model should have now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llmgw.control.decide.parts import key_of
from llmgw.control.decide.roles import Roles, idle_s, is_busy, is_serving, resident_s, usage_of
from llmgw.control.decide.snapshot import (
    NO_PRESSURE,
    ClusterSnapshot,
    Pressure,
    ReplicaRecord,
    Wanted,
)
from llmgw.domain.catalog import Model
from llmgw.domain.units import counted

#: Routers repeat a nudge while somebody waits; without one for this long nobody does any more.
NOBODY_WAITS_AFTER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The number, why, and when it may change by itself."""

    count: int
    because: str
    pressure: Pressure = NO_PRESSURE
    recheck_after_s: float | None = None


def target_of(snapshot: ClusterSnapshot, model: Model, roles: Roles) -> Target:
    """Return how many replicas the model should have.

    The number in force is the number there is; load, idleness and somebody waiting move it,
    each only after it has lasted. So a server that starts adopts the number it finds.
    """
    scale, limits = model.replicas, snapshot.limits
    have = len(roles.fresh) + len(roles.dead)
    have = max(have, min(len(roles.old) + len(roles.dead), scale.max))
    waited_for = is_wanted(snapshot, model)
    lowest = max(scale.min, 1 if waited_for else 0)
    if not have:
        because = (
            "somebody waits" if waited_for and not scale.min else f"replicas.min is {scale.min}"
        )
        return Target(count=lowest, because=because)
    if (idle := _idle_target(snapshot, model, roles, waited_for)) is not None:
        if idle.count == 0:
            return idle
        idle_recheck = idle.recheck_after_s
    else:
        idle_recheck = None
    have = min(max(have, lowest), scale.max)
    serving = [item for item in roles.serving if usage_of(snapshot, item) is not None]
    load = sum(usage.in_flight for item in serving if (usage := usage_of(snapshot, item)))
    load += _queued(snapshot, model)
    asked = min(max(math.ceil(load / scale.target_inflight), lowest, 1), scale.max)
    if not snapshot.usage_known or asked == have:
        return Target(count=have, because="as many as before", recheck_after_s=idle_recheck)
    before = snapshot.pressure.get(key_of(model), NO_PRESSURE)
    if asked > have:
        since = snapshot.now if before.above_since is None else before.above_since
        left_s = since + limits.scale_up_after - snapshot.now
        count = asked if left_s <= 0 else have
        because = f"{counted(load, 'request')}, {scale.target_inflight} a replica"
        pressure = Pressure(above_since=since)
    else:
        since = snapshot.now if before.below_since is None else before.below_since
        left_s = since + limits.scale_down_after - snapshot.now
        # One at a time: the next one goes after it has been seen that this one is not missed.
        count = have - 1 if left_s <= 0 else have
        because = f"{asked} would do for {counted(load, 'request')}"
        pressure = NO_PRESSURE if left_s <= 0 else Pressure(below_since=since)
    waits = [wait for wait in (left_s if left_s > 0 else None, idle_recheck) if wait is not None]
    return Target(
        count=count, because=because, pressure=pressure, recheck_after_s=min(waits, default=None)
    )


def is_wanted(snapshot: ClusterSnapshot, model: Model) -> bool:
    """Return whether somebody waits for the model."""
    if _queued(snapshot, model):
        return True
    wanted = snapshot.wanted.get(model.name)
    return wanted is not None and not is_stale(wanted, snapshot.now)


def _queued(snapshot: ClusterSnapshot, model: Model) -> int:
    """Return how many requests wait for the model, under any of its names."""
    queued = snapshot.usage.queued
    if not queued:  # nearly always
        return 0
    return sum(queued.get(name, 0) for name in (*model.names, *model.adapters))


def is_stale(wanted: Wanted, now: float) -> bool:
    """Return whether those who waited have most likely gone."""
    return now - wanted.newest > NOBODY_WAITS_AFTER_S


def _idle_target(
    snapshot: ClusterSnapshot, model: Model, roles: Roles, waited_for: bool
) -> Target | None:
    """Return 0 once all replicas have been idle long enough; None if it may not sleep."""
    if model.idle_after is None or model.replicas.min or waited_for or not snapshot.usage_known:
        return None
    live: Sequence[ReplicaRecord] = (*roles.fresh, *roles.old)
    if not live or not all(is_serving(item) for item in live):
        return None
    if any(is_busy(snapshot, item) for item in live):
        return None
    idle = min(idle_s(snapshot, item) for item in live)
    resident = min(resident_s(snapshot, item) for item in live)
    left_s = max(model.idle_after - idle, snapshot.limits.minimum_residence - resident)
    if left_s > 0:
        return Target(count=len(live), because="in use", recheck_after_s=left_s)
    return Target(count=0, because=f"idle for {idle:.0f} s")
