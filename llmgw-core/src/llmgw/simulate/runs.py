"""How large, long and bad a simulated run is, and what it came to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSize:
    """How large, how long, how bad."""

    nodes: int = 20
    devices: int = 4  #: per node
    models: int = 12
    paired: int = 0  #: of these, how many compute prompts and answers apart
    servers: int = 2
    hours: float = 1.0
    fault_every_s: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to. It would have raised `Violation` if anything had been wrong."""

    seed: int
    events: int
    faults: int
    passes: int
    starts: int  #: of engines
    quiet_passes: int  #: while nothing went wrong any more
    history: int  #: digest of everything that nodes were told and said, and when
