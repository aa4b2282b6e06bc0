"""What is left of a shard from an agent's former life: a decision from proofs, never from names.

    boot id differs             gone         nothing of another boot can be alive
    lock free, exit.json        ended        as it says
    lock free, no state.json    nothing      no shim came so far; what carries the cookie is killed
    lock free, no exit.json     shim lost    likewise, and reported
    lock held, no state.json    starting     the shim is between its lock and its engine
    lock held, main ended       leftovers    a worker lives on without the main process
    lock held, main proven      running      start time and cookie match: adopted

An unhealthy engine is adopted like any other; what follows is the ordinary restart rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from llmgw_agent.node.processes import ProcessEntry
from llmgw_agent.node.shardfolder import LaunchRecord, ShimExit, ShimState


class Remains(StrEnum):
    """In what way a shard was left."""

    NOTHING = "nothing"  #: never launched
    GONE = "gone"
    ENDED = "ended"
    SHIM_LOST = "shim_lost"
    STARTING = "starting"
    LEFTOVERS = "leftovers"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that can be seen of a shard when the agent starts."""

    boot_id: str
    record: LaunchRecord | None
    state: ShimState | None
    exit: ShimExit | None
    is_locked: bool
    main: ProcessEntry | None  #: whoever has the main pid of `state` now


def judge(evidence: Evidence) -> Remains:
    """Return how the shard was left."""
    record, state = evidence.record, evidence.state
    if record is None:
        # The agent died before the first launch record was whole: no shim was ever started.
        return Remains.NOTHING
    if state is not None and state.boot_id != evidence.boot_id:
        return Remains.GONE
    if not evidence.is_locked:
        if evidence.exit is not None and evidence.exit.run == record.run:
            return Remains.ENDED
        return Remains.NOTHING if state is None else Remains.SHIM_LOST
    if state is None or state.run != record.run:
        return Remains.STARTING
    main = evidence.main
    if state.main_exit is None and main is not None and main.process == state.main:
        # The cookie is asked for as well, but a process that sets its title loses it: the
        # start time is proof enough, since pid and start time never come twice in a boot.
        return Remains.RUNNING if main.cookie in (record.cookie, None) else Remains.LEFTOVERS
    return Remains.LEFTOVERS
