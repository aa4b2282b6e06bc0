"""What can be wrong with weights, as types that a failure's cause is read from."""

from __future__ import annotations

from llmgw.domain.replicas import FailureCause
from llmgw.errors import LlmgwError, PermanentError, TransientError
from llmgw_agent.node.durable import DiskFull


class NoRoom(PermanentError):
    """It does not fit; the message has the bytes needed and free."""


class Corrupt(PermanentError):
    """Other bytes than were asked for."""


class Gated(PermanentError):
    """Its owner asks for an account or an agreement."""


def cause_of(error: LlmgwError) -> FailureCause:
    """Return the cause that a failure with this error has."""
    match error:
        case NoRoom() | DiskFull():
            return FailureCause.DISK_FULL
        case Corrupt():
            return FailureCause.WEIGHTS_CORRUPT
        case Gated():
            return FailureCause.WEIGHTS_GATED
        case TransientError():
            return FailureCause.DOWNLOAD_FAILED
        case _:
            return FailureCause.WEIGHTS_MISSING
