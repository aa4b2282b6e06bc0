"""The constants of an exchange: where it stands, how often it tries, what failures are called."""

from __future__ import annotations

from enum import Enum, auto

from llmgw.router.pool import EngineFailure
from llmgw.router.routes import Dialect
from llmgw.router.selection import Outcome


class Phase(Enum):
    """What the deadline means at this moment."""

    WAITING = auto()  #: in line, or for a model to wake
    HELD = auto()  #: nobody could be reached; in a moment it gets in line again
    ASKED = auto()  #: dispatched, nothing has come back
    ANSWERING = auto()
    STALLED = auto()  #: the client does not read
    OVER = auto()


CONNECT_TRIES = 3
"""Two more after a failed connect: nothing has been asked of anybody yet."""
TRIES = 2
RECONNECT_S = 0.5
"""Between two looks for an endpoint when none could be reached."""
EVENT_STREAM = b"content-type: text/event-stream; charset=utf-8\r\n"
PINGS = {
    Dialect.OPENAI: b": waiting for the model\n\n",
    Dialect.ANTHROPIC: b'event: ping\ndata: {"type":"ping"}\n\n',
}
OUTCOME_OF = {
    EngineFailure.CONNECT: Outcome.CONNECT_FAILED,
    EngineFailure.RESET: Outcome.RESET,
    EngineFailure.GARBLED: Outcome.ENGINE_ERROR,
}
SUSPICIOUS = frozenset({Outcome.CONNECT_FAILED, Outcome.RESET, Outcome.IDLE_TIMEOUT})
"""After these the health of the engine is looked at now, not at the next interval."""
